"""Writes a first spec: for a table of the user's, or for data that ships with placer."""
