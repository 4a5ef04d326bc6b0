"""Relax modules as models: what every importer's result goes through."""
