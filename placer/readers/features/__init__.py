"""Computes features, as `docs/features.md` defines them, for some rows at a time."""
