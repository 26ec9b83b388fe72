"""Passes for gradients, parameter updates and recomputation."""
