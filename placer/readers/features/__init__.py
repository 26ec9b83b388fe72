"""Computes the features of `docs/features.md`, for some rows at a time."""
