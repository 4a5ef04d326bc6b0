"""Memory plans, applied to Relax functions."""
