"""Parts of scripts/bench_hexagon.py that are long."""
