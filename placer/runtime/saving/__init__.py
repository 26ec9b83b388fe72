"""Saves checkpoints and parameters, and starts runs from them."""
