"""Layouts, applied to Relax functions."""
