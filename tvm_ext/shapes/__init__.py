"""Symbolic extents: an open batch as a loop over single images."""
