"""Rewriting of arithmetic, applied to Relax functions."""
