"""Runs on several hosts: network namespaces with real processes and connections.

The results have the bits of a run on one machine.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.free_addresses import eventually
from support.hosts import Host, hosts, needs_hosts
from support.marks import slow_but
from support.real_runs import ROOT
from support.trace_file import read_trace

import placer
from placer.channel.keys import new_key, write_key

pytestmark = needs_hosts
STEPS = 30
MOVED = """\
name: moved
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {x: "float32[batch]", y: "float32[batch]"}
data:
  train: {source: "csv:rows.csv", batch: 8}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: wide, op: reshape, in: x, shape: [batch, 1]}
      - {name: out, op: fc, in: wide, size: 1}
      - {name: prediction, op: reshape, in: out, shape: [batch]}
      - {name: loss, op: mean_squared_error, in: [prediction, y]}
train:
  minimize: loss
  epochs: 2
  optimizer: {op: sgd, learning_rate: 0.01, place: /node:ps/cpu}
"""


@pytest.fixture(scope="module")
def three() -> Iterator[list[Host]]:
    """Three hosts."""
    with hosts() as made:
        yield made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The file of a key."""
    path = tmp_path / "run.key"
    write_key(path, new_key())
    return path


class Run:
    """The nodes of a build, each on a host, which are given by their names."""

    def __init__(
        self,
        build: Path,
        places: Mapping[str, Host],
        addresses: Mapping[str, str],
        key: Path,
        *options: str,
        node_options: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        listed = ",".join(f"{node}={where}" for node, where in addresses.items())
        self.processes = {
            node: host.start(
                *(sys.executable, "-m", "placer.command", "run", str(build)),
                *("--node", node, "--endpoints", listed, "--key", str(key)),
                *(*options, *(node_options or {}).get(node, ())),
                env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            )
            for node, host in places.items()
        }

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def end(self, within: float = 120) -> dict[str, tuple[int, str, str]]:
        """Wait for all nodes; return the status, output and errors of each."""
        until = time.monotonic() + within
        result = {}
        for node, process in self.processes.items():
            out, err = process.communicate(timeout=until - time.monotonic())
            result[node] = process.returncode, out, err
        return result


def build_of(
    spec: str, folder: Path, steps: int = STEPS, **overrides: object
) -> tuple[Path, dict[str, np.ndarray]]:
    """Compile a spec, and train it on one machine; return the build and parameters."""
    build, params = folder / "build", folder / "local.safetensors"
    placer.compile(ROOT / "specs" / spec, build, overrides=overrides)
    placer.launch(build, steps=steps, save_params=params, in_process=True)
    return build, load_file(params)


def spread(build: Path, three: Sequence[Host]) -> dict[str, Host]:
    """Deal the nodes to the hosts, two neighbours to one."""
    names = [
        node["name"] for node in json.loads((build / "plan.json").read_text())["nodes"]
    ]
    return {name: three[(i // 2) % 3] for i, name in enumerate(names)}


def addresses_of(places: Mapping[str, Host], family: str) -> dict[str, str]:
    """Return the address of each node, by "ipv4", "ipv6", "name", or in turn by these."""
    where = {
        "ipv4": lambda host: host.ipv4,
        "ipv6": lambda host: f"[{host.ipv6}]",
        "name": lambda host: host.name,
    }
    families = [family] if family in where else ["name", "ipv6", "ipv4"]
    return {
        node: f"{where[families[i % len(families)]](host)}:{4711 + i}"
        for i, (node, host) in enumerate(places.items())
    }


def check_ends(ended: Mapping[str, tuple[int, str, str]]) -> None:
    assert [status for status, _, _ in ended.values()] == [0] * len(ended), ended


@pytest.mark.parametrize(
    ("spec", "family"),
    slow_but(
        [("digits.yaml", "in turn")],
        [
            ("digits.yaml", "in turn"),
            ("digits.yaml", "ipv4"),
            ("digits.yaml", "name"),
            ("transformer_pipeline.yaml", "ipv6"),
            ("two_workers.yaml", "ipv6"),
            ("wide_deep.yaml", "ipv4"),
        ],
    ),
)
def test_hosts_train_to_the_bits_of_one_machine(three, key, tmp_path, spec, family):
    build, expected = build_of(spec, tmp_path)
    path = tmp_path / "trace.json"
    options = (f"--steps={STEPS}", "--emulate", f"--trace={path}", "--trace-steps=3:9")
    with start(build, three, key, tmp_path, family, *options) as run:
        check_ends(run.end())
    check_bits(tmp_path, expected)
    trace = read_trace(path)
    assert trace.nodes == list(run.processes)
    assert trace.messages("target") == trace.messages("source")
    assert len(trace.arrows) == trace.messages("target").total() > 0


def start(
    build: Path,
    three: Sequence[Host],
    key: Path,
    folder: Path,
    family: str,
    *options: str,
) -> Run:
    """Start the nodes of a build on three hosts; they save their parameters."""
    places = spread(build, three)
    addresses = addresses_of(places, family)
    saved = f"--save-params={folder / 'params.safetensors'}"
    return Run(build, places, addresses, key, saved, *options)


def check_bits(folder: Path, expected: Mapping[str, np.ndarray]) -> None:
    got = load_file(folder / "params.safetensors")
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], expected[name]) for name in got)


LONG = 400
"""Steps of a run that is disturbed."""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    """A build, and its parameters after `LONG` steps on one machine."""
    rate = {
        "train.optimizer.0.learning_rate": {"cosine": {"init": 0.01, "steps": LONG}}
    }
    return build_of("digits.yaml", tmp_path_factory.mktemp("long"), LONG, **rate)


def wait_for_steps(history: Path, count: int) -> None:
    """Wait until a run has done so many steps."""
    eventually(
        lambda: history.exists() and history.read_text().count("\n") >= count, 60
    )


@pytest.mark.slow
def test_a_link_that_is_cut_for_five_seconds_changes_nothing(
    three, key, tmp_path, long_run
):
    build, expected = long_run
    history = tmp_path / "history.jsonl"
    options = (f"--steps={LONG}", f"--history={history}")
    with start(build, three, key, tmp_path, "ipv4", *options) as run:
        wait_for_steps(history, 20)
        three[1].cut()
        threading.Event().wait(5)
        assert all(process.poll() is None for process in run.processes.values())
        three[1].mend()
        check_ends(run.end())
    check_bits(tmp_path, expected)


def test_connections_that_are_reset_at_random_change_nothing(
    three, key, tmp_path, long_run
):
    build, expected = long_run
    history = tmp_path / "history.jsonl"
    options = (f"--steps={LONG}", f"--history={history}")
    draw = random.Random(5)
    with start(build, three, key, tmp_path, "ipv4", *options) as run:
        wait_for_steps(history, 5)
        resets = 0
        while all(process.poll() is None for process in run.processes.values()):
            draw.choice(three).reset_connections()
            resets += 1
            if resets == 12:
                break
            done = history.read_text().count("\n")
            wait_for_steps(history, min(done + draw.randrange(30), LONG))
        check_ends(run.end())
    check_bits(tmp_path, expected)


def test_a_link_that_is_cut_for_good_ends_the_run_and_is_named(
    three, key, tmp_path, long_run
):
    build, _ = long_run
    history = tmp_path / "history.jsonl"
    options = ("--steps=1000000", f"--history={history}", "--lost-after=6")
    with start(build, three, key, tmp_path, "ipv4", *options) as run:
        wait_for_steps(history, 20)
        three[1].cut()
        began = time.monotonic()
        try:
            ended = run.end(30)
        finally:
            three[1].mend()
        assert time.monotonic() - began < 6 + 10
    status, _, err = ended["worker:0"]
    assert status == 1
    assert "has been silent for" in err
    # Of the nodes on both sides of the cut, the one that finds the loss first says so.
    assert re.search(
        r"^ps:[01]: seen from worker:[01]: lost: no heartbeat for 6 s; its last status was: \w",
        err,
        re.MULTILINE,
    ), err


@pytest.mark.parametrize(
    ("differs", "why"),
    [
        pytest.param("key", "the key is different", marks=pytest.mark.slow),
        ("build", "the peer refused the connection: the build is different"),
    ],
)
def test_a_node_with_another_key_or_build_is_named_with_the_reason(
    three, key, tmp_path, long_run, differs, why
):
    build, _ = long_run
    theirs, their_key = build, key
    if differs == "build":
        theirs = tmp_path / "other"
        placer.compile(
            ROOT / "specs" / "digits.yaml", theirs, overrides={"name": "other"}
        )
    else:
        their_key = tmp_path / "other.key"
        write_key(their_key, new_key())
    places = spread(build, three)
    listed = addresses_of(places, "ipv4")
    short = "--join-timeout=2"
    with (
        Run(build, {"worker:0": places["worker:0"]}, listed, key, short) as first,
        Run(theirs, {"ps:1": places["ps:1"]}, listed, their_key, short) as second,
    ):
        mine, other = first.end()["worker:0"], second.end()["ps:1"]
    assert (mine[0], other[0]) == (1, 1)
    assert f"ps:1 did not join within 2 s (10.9.0.2:4714): {why}" in mine[2]
    assert "worker:0 did not join within 2 s (10.9.0.1:4711)" in other[2]


def test_a_node_reads_the_data_where_the_option_says(three, key, tmp_path):
    """The machines of workers have it elsewhere; that of the server has none."""
    sources = tmp_path / "sources"
    sources.mkdir()
    rows = "x,y\n" + "".join(f"{i % 7},{i % 3}\n" for i in range(32))
    (sources / "rows.csv").write_text(rows)
    spec = sources / "moved.yaml"
    spec.write_text(MOVED)
    build = tmp_path / "build"
    placer.compile(spec, build)
    placer.launch(build, save_params=tmp_path / "local.safetensors", in_process=True)
    expected = load_file(tmp_path / "local.safetensors")
    moved = tmp_path / "elsewhere"
    sources.rename(moved)
    places = spread(build, three)
    addresses = addresses_of(places, "ipv4")
    saved = f"--save-params={tmp_path / 'params.safetensors'}"
    options = {node: (f"--data={moved}",) for node in places if "worker" in node}
    with Run(build, places, addresses, key, saved, node_options=options) as run:
        check_ends(run.end())
    check_bits(tmp_path, expected)
