"""Uses of all ops, and plain formulas for them, in a module for each family of ops."""
