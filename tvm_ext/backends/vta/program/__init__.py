"""Writing programs: tokens, micro-op kernels and their memory are added."""
