"""Tuning databases: MetaSchedule's files in a folder, and the schedules a compilation takes from them."""
