"""Tensor expressions of operators in blocked layouts; they say what is computed, schedule rules say how."""
