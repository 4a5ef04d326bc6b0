"""Experiments and measurements; each writes its figures to docs/results."""
