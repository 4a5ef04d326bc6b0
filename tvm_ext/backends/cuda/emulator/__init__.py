"""Scheduled CUDA functions on the CPU: values, and what is wrong with them."""
