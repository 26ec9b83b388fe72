"""Generators of sources and documentation."""
