"""The memory that the steps of a node need."""
