"""Traces optax optimizers, and computes their updates on blocks of parameters."""
