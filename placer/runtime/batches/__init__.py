"""Rows of sources as the batches of a node."""
