"""Schedules for VTA."""
