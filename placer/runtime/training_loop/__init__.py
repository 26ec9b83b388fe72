"""A training run on one node, from its preparation to its end."""
