"""The process of a node, and what it is given."""
