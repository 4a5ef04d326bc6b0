"""Kernels of 8-bit integers for Hexagon's vector extension HVX, as PrimFuncs that need no schedule."""
