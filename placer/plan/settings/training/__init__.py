"""Training settings: optimizers, schedules, slicing, metrics."""
