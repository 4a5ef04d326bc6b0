"""Fusion plans, applied to Relax functions."""
