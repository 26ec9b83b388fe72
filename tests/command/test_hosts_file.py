"""Files of hosts."""

from __future__ import annotations

import pytest

from placer.errors import PlacerError
from placer.launcher.hosts import read_hosts

NODES = ["worker:0", "worker:1", "ps:0", "ps:1"]


def read(tmp_path, text, base_port=None):
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    return read_hosts(path, NODES, base_port)


def test_each_node_has_its_host_and_a_port_by_its_number(tmp_path):
    text = 'worker: [10.0.0.1, "[fd00::2]"]\nps: [host-c, host-d:5000]\nport: 4711\n'
    assert read(tmp_path, text) == {
        "worker:0": "10.0.0.1:4711",
        "worker:1": "[fd00::2]:4712",
        "ps:0": "host-c:4713",
        "ps:1": "host-d:5000",
    }
    assert read(tmp_path, text, 600)["worker:1"] == "[fd00::2]:601"


def test_one_host_for_all_nodes_of_a_kind(tmp_path):
    got = read(tmp_path, "worker: host-a\nps: fd00::3\nport: 10\n")
    assert got == {
        "worker:0": "host-a:10",
        "worker:1": "host-a:11",
        "ps:0": "[fd00::3]:12",
        "ps:1": "[fd00::3]:13",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("worker: [a, b]\n", "has no host for the nodes of kind 'ps'"),
        (
            "worker: [a, b]\nps: [c]\n",
            "has 1 host for 2 nodes of kind 'ps': ps:0, ps:1",
        ),
        (
            "worker: [a, b]\nps: [c, 5]\n",
            "has something else for the nodes of kind 'ps'",
        ),
        ("worker: [a, b]\nps: c\nserver: d\n", "no node of kind 'server'"),
        ("worker: [a, -oProxyCommand=x]\nps: c\n", "is not an address"),
        ("worker: [a, 'b:0']\nps: c\n", "has no port from 1 to 65535"),
        ("worker: a\nps: c\nport: 65534\n", "port 65534 is not one"),
        ("worker: a\nps: c\nport: x\n", "port 'x' is not one"),
        ("- a\n", "must have the hosts of each kind of node"),
        ("worker: [a\n", "is not YAML"),
        ("!!python/object/apply:os.system [ls]\n", "is not YAML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path, text, why):
    with pytest.raises(PlacerError) as raised:
        read(tmp_path, text)
    assert why in str(raised.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(PlacerError, match=r"cannot read .*: No such file"):
        read_hosts(tmp_path / "none", NODES)
