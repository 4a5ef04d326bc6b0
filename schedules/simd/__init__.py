"""Explicit vector code: loops that a schedule rule marks become vector statements when kernels are lowered."""
