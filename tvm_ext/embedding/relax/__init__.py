"""Embeddings applied to Relax modules."""
