"""Files of hosts."""

from __future__ import annotations

import pytest

from placer.errors import PlacerError
from placer.launcher.hosts import read_addresses, read_hosts

NODES = ["worker:0", "worker:1", "ps:0", "ps:1"]


def read(tmp_path, text, base_port=None):
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    return read_hosts(path, NODES, base_port).addresses


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
    ("text", "hosts"),
    [
        (
            "worker: gpu[01-02]\nps: host-[9-10]",
            ["gpu01", "gpu02", "host-9", "host-10"],
        ),
        ("worker: gpu[01,07]:500\nps: c", ["gpu01", "gpu07", "c", "c"]),
        ('worker: ["gpu[3]", a]\nps: "r[1-2]n[8]"', ["gpu3", "a", "r1n8", "r2n8"]),
        ("worker: gpu[4]\nps: [fe80::1, c]", ["gpu4", "gpu4", "[fe80::1]", "c"]),
    ],
)
def test_ranges_of_hosts_are_as_slurm_writes_them(tmp_path, text, hosts):
    got = read(tmp_path, text)
    assert [address.rpartition(":")[0] for address in got.values()] == hosts
    assert [*got] == NODES


def test_spare_machines_are_hosts_without_ports(tmp_path):
    path = tmp_path / "hosts.yaml"
    path.write_text("worker: a\nps: b\nspare: [c, 'd[1-2]', 'fd00::2', '[fd00::3]']\n")
    spares = read_hosts(path, NODES).spares
    assert spares == ("c", "d1", "d2", "fd00::2", "fd00::3")
    with pytest.raises(PlacerError, match="'spare' has no effect on nodes"):
        read_addresses(path, NODES)
    path.write_text("worker: a\nps: b\nspare: c\n")
    assert read_hosts(path, NODES).spares == ("c",)
    # A kind of node may have the name.
    assert read_hosts(path, ["worker:0", "ps:0", "spare:0"]).spares == ()


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
        ("worker: a\nps: c\nport: 65534\n", "port 65534 is not between"),
        ("worker: a\nps: c\nport: x\n", "port 'x' is not between"),
        ("worker: gpu[01-03]\nps: c\n", "has 3 hosts for 2 nodes of kind 'worker'"),
        ("worker: gpu[2-1]\nps: c\n", "'2-1' is not a range"),
        ("worker: gpu[1-2\nps: c\n", "'gpu[1-2' is not a list of hosts"),
        ("worker: 'n[0-9999][0-9999]'\nps: c\n", "more than 1,048,576 hosts"),
        ("worker: [gpu[01-02]]\nps: c\n", 'quote a range in a list: ["gpu[01-04]"'),
        ("worker: a\nps: c\nspare: 5\n", "'spare' must list hosts"),
        ("worker: a\nps: c\nspare: [d, 5]\n", "'spare' must list hosts"),
        ("worker: a\nps: c\nspare: d:5\n", "spare machine 'd:5' must not have a port"),
        ("worker: a\nps: c:5\nspare: [d, c]\n", "spare machine 'c' already has nodes"),
        ("worker: a\nps: c\nspare: [d, d]\n", "spare machine 'd' is listed twice"),
        ("worker: a\nps: c\nspare: -x\n", "'-x:1' is not an address"),
        ("- a\n", "must list the hosts of each kind of node"),
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
