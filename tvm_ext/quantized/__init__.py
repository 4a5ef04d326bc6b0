"""Quantised models in integer arithmetic."""
