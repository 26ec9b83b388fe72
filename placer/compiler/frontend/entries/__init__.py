"""Reads the ops of a spec, and checks each by its declaration."""
