"""Latency of one model under several engines, side by side in one run."""
