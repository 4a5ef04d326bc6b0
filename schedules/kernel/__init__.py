"""What rules of any target read off a kernel and do to its blocks: accesses, operations, rows, inlining."""
