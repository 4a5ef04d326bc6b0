"""Tuners: configuration spaces, explorers, samplers, initialisers, cost models, measuring, MetaSchedule adapters."""
