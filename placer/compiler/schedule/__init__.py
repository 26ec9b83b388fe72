"""Schedules: which node runs which ops, in which order, at which cost."""
