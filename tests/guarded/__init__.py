"""Kernels that run with every argument at the very end, and at the very beginning, of memory they may touch."""
