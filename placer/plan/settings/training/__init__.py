"""The settings of a training: optimizers, schedules, slicing, metrics."""
