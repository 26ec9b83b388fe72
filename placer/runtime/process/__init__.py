"""Runs nodes as processes or threads, and prepares their environment."""
