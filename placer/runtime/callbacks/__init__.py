"""Delivers the events of a run to callbacks of the user and to TensorBoard."""
