"""Slurm's short forms of lists."""

from __future__ import annotations

import pytest

from placer.errors import PlacerError
from placer.launcher.engines.host_lists import expand_hosts, expand_tasks


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,m.example", ["n1", "m.example"]),
        ("n[08-10,12],gpu1", ["n08", "n09", "n10", "n12", "gpu1"]),
        ("r[1-2]n[3,5]x", ["r1n3x", "r1n5x", "r2n3x", "r2n5x"]),
    ],
)
def test_hosts(text, names):
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text", ["", "n[1", "n]1", "a,,b", "n[2-1]", "n[x]", "n[1-]", "n[0-99999999]"]
)
def test_no_list_of_hosts(text):
    with pytest.raises(PlacerError, match="hosts"):
        expand_hosts(text)


def test_tasks():
    assert expand_tasks("2(x3),1") == [2, 2, 2, 1]


@pytest.mark.parametrize("text", ["", "x", "2(x)", "-1"])
def test_no_list_of_tasks(text):
    with pytest.raises(PlacerError, match="numbers of tasks"):
        expand_tasks(text)
