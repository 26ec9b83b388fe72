"""The passes that differentiate, update and recompute."""
