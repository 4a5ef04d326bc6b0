"""Measuring: candidates are compiled and run in warm worker processes, one at a time, in isolation."""
