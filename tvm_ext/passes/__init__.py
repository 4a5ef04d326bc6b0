"""One graph pass per file."""
