"""A small model that several files run with faults."""

import pytest
from support.faulty_runs import make_small


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def whole(small):
    """A run that is left alone."""
    return small.run()
