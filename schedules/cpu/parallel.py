"""When a kernel is worth handing to the thread pool."""

FORK_SECONDS = 20e-6
"""A kernel shorter than this is not divided: waking the pool would cost more than it saves."""

PARALLEL_FLOPS = 1_000_000
"""Multiplications and additions that a vectorised kernel does in about half of ``FORK_SECONDS`` on one core."""

PARALLEL_BYTES = 256 << 10
"""Bytes that a memory-bound kernel moves in about ``FORK_SECONDS`` on one core."""
