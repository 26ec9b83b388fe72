"""Uses of every op, and plain formulas for them: one module a family of ops."""
