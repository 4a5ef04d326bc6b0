"""Parts of ``bench_cuda.py``."""
