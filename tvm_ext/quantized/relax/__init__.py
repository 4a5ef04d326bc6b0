"""Integer arithmetic, applied to Relax functions."""
