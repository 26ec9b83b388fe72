"""What all tests share."""

import jax

# Two to emulate others by; more would make everything slower.
jax.config.update("jax_num_cpu_devices", 3)


def pytest_collection_modifyitems(items):
    """The longest first: of several processes none is left with it at the end."""
    items.sort(key=lambda item: "test_drawn_placements" not in item.nodeid)
