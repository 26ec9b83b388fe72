"""Estimates memory, and finds tables that can be updated in place."""
