"""CPUs, through LLVM."""
