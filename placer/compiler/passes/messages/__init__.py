"""Passes that insert conversions, copies and messages."""
