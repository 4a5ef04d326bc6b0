"""Decoders that generate text token by token: from weights to a compiled model that keeps its cache."""
