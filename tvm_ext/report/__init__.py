"""The ``inspect`` page."""
