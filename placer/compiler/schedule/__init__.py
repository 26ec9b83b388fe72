"""Which node runs which ops, in which order, and what that costs."""
