"""Layouts: the blocked layout of convolution networks, packed operands of matrix products."""
