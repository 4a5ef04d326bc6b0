"""Parts of ``scripts/bench_memory.py``."""
