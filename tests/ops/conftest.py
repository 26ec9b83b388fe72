"""These tests compile thousands of small programs, each of which runs once."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
