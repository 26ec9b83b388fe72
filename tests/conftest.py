"""What all tests share."""


def pytest_collection_modifyitems(items):
    """The longest first: of several processes none is left with it at the end."""
    items.sort(key=lambda item: "test_drawn_placements" not in item.nodeid)
