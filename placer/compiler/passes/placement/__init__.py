"""Passes that place ops and parameters."""
