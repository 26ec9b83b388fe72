"""Computes the features of `docs/how-to/features.md`, for some rows at a time."""
