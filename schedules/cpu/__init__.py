"""Schedule rules for CPUs, one operator family a file."""
