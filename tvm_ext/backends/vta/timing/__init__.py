"""The cycle model."""
