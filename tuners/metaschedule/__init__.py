"""Tuners as parts of TVM's MetaSchedule: search strategy, builder, runner, and tuning of whole models."""
