"""The batches of a node, read from sources."""
