"""Reads the ops of a spec, and checks each op by its declaration."""
