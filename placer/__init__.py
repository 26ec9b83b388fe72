"""placer: one model, place strings on its ops, one readable JAX program per node."""

__version__ = "0.1.0"
