"""What all tests share."""

import os
from importlib.metadata import version

# Small graphs compile for longer than they run, and XLA's newer emitters take two thirds
# of it. They can be left out up to jaxlib 0.10; processes that tests start have them.
FLAGS = os.environ.get("XLA_FLAGS", "")
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    os.environ["XLA_FLAGS"] = f"{FLAGS} --xla_cpu_use_fusion_emitters=false"

import jax  # noqa: E402

# Two to emulate others by; more would make everything slower.
jax.config.update("jax_num_cpu_devices", 3)
jax.devices()  # which reads the flags
os.environ["XLA_FLAGS"] = FLAGS


def pytest_collection_modifyitems(items):
    """The longest first: of several processes none is left with it at the end."""
    items.sort(key=lambda item: "test_drawn_placements" not in item.nodeid)
