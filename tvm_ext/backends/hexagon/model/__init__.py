"""Whole quantised models for Hexagon: which kernels compute them, and programs that run them."""
