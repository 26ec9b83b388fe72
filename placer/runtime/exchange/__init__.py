"""Sends and receives the edges of a plan."""
