"""Published graphs of models as problems of places: Tarnawski et al. 2020, PipeDream 2019.

They are in `placing.tar.gz` of the folder of data sets, whose tests are skipped without it.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from placer.compiler.placing.cycles import Sets
from placer.compiler.placing.problem import (
    MEGABYTE,
    Devices,
    Flow,
    Group,
    Link,
    Problem,
)
from support.data_sets import FOLDER

FILE = FOLDER / "placing.tar.gz"
GRAPHS = (
    "bert24_inference",
    "bert24_training",
    "gnmt_inference",
    "gnmt_training",
    "inceptionv3_inference",
    "inceptionv3_training",
    "op_bert_l-3_inference",
    "op_bert_l-3_training",
    "op_resnet50_inference",
    "resnet50_inference",
    "resnet50_training",
)
ACCELERATOR, CPU, GPU = "accelerator", "cpu", "gpu"


@cache
def _files() -> Mapping[str, str]:
    with tarfile.open(FILE) as archive:
        members = [each for each in archive.getmembers() if each.isfile()]
        contents = {each.name: archive.extractfile(each) for each in members}
        return {n: file.read().decode() for n, file in contents.items() if file}


def _read(name: str) -> str:
    if not FILE.is_file():
        pytest.skip(f"there is no {FILE.name}")
    return _files()[f"placing/{name}"]


def expected(graph: str) -> Mapping[str, float | None]:
    """Return the loads that others reached, in ms: `dp`, `pipedream` and `expert`."""
    folder = "OperatorGraphs" if graph.startswith("op_") else "LayerGraphs"
    values: Mapping[str, float | None] = json.loads(_read("expected.json"))[
        f"{folder}/{graph.removeprefix('op_')}"
    ]
    return values


def published_graph(name: str) -> Problem:
    """Return a graph of Tarnawski et al.: accelerators, and one CPU that sends for free.

    Nodes of one colour are a group; so are groups on a cycle.
    """
    graph: dict[str, Any] = json.loads(_read(f"graphs/{name}.json"))
    nodes = graph["nodes"]
    index = {node["id"]: i for i, node in enumerate(nodes)}
    sets = Sets(len(nodes))
    colours: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if "colorClass" in node:
            sets.join(i, colours.setdefault(node["colorClass"], i))
    backward = [bool(node["isBackwardNode"]) for node in nodes]
    has_forward = {sets.first(i) for i in range(len(nodes)) if not backward[i]}
    edges: list[tuple[int, int]] = []
    costs: dict[int, tuple[float, set[int]]] = {}
    for edge in graph["edges"]:
        a, b = index[edge["sourceId"]], index[edge["destId"]]
        # A value costs its source the same, however many use it.
        costs.setdefault(a, (edge["cost"], set()))[1].add(b)
        if not backward[a] and not backward[b]:
            edges.append((a, b))
        elif backward[a] and backward[b] and not _both(sets, has_forward, a, b):
            edges.append((b, a))  # gradients flow against the order of groups
    sets.join_cycles(edges)
    firsts = sorted({sets.first(i) for i in range(len(nodes))})
    number = {first: i for i, first in enumerate(firsts)}
    group = [number[sets.first(i)] for i in range(len(nodes))]
    members: list[list[Any]] = [[] for _ in firsts]
    for i, node in enumerate(nodes):
        members[group[i]].append(node)
    flows = []
    for a, (cost, users) in costs.items():
        if targets := tuple(sorted({group[b] for b in users} - {group[a]})):
            flows.append(Flow(group[a], targets, _nanoseconds(cost)))
    pairs = sorted({(group[a], group[b]) for a, b in edges if group[a] != group[b]})
    memory = int(graph["maxSizePerFPGA"])
    devices = (
        Devices(ACCELERATOR, graph["maxFPGAs"], memory),
        Devices(CPU, graph["maxCPUs"], sends=False),
    )
    groups = [_group(each) for each in members]
    return Problem(groups, flows, pairs, devices, Link(per_megabyte=MEGABYTE))


def _both(sets: Sets, has_forward: set[int], a: int, b: int) -> bool:
    return sets.first(a) in has_forward and sets.first(b) in has_forward


def _group(nodes: list[Any]) -> Group:
    times = {CPU: sum(_nanoseconds(node["cpuLatency"]) for node in nodes)}
    if all(node["supportedOnFpga"] for node in nodes):
        latencies = [_nanoseconds(node["fpgaLatency"]) for node in nodes]
        times[ACCELERATOR] = sum(latencies)
    stored = sum(int(node["size"]) for node in nodes)
    return Group(str(nodes[0]["id"]), times, stored=stored)


def pipedream_profile(name: str, devices: int) -> Problem:
    """Return a profile of PipeDream: GPUs at 1.25 GB/s that send while they compute."""
    groups: list[Group] = []
    index: dict[str, int] = {}
    sizes: list[int] = []
    users: dict[int, list[int]] = {}
    edges: list[tuple[int, int]] = []
    for line in _read(f"pipedream/{name}.txt").splitlines():
        node, *rest = line.strip().split(" -- ")
        if len(rest) == 1:
            edges.append((index[node], index[rest[0]]))
            continue
        found = dict(re.findall(r"(\w+)=\[?([\d.]+)", rest[-1]))
        index[node] = len(groups)
        sizes.append(int(float(found["activation_size"])))
        groups.append(
            Group(
                node,
                {GPU: _nanoseconds(float(found["forward_compute_time"]))},
                {GPU: _nanoseconds(float(found["backward_compute_time"]))},
                # They charge 4 (r - 1) / r of the bytes, twice what a ring sends.
                parameters=2 * int(float(found["parameter_size"])),
            )
        )
    for a, b in edges:
        users.setdefault(a, []).append(b)
    flows = []
    for a, targets in users.items():
        flows.append(Flow(a, tuple(targets), sizes[a]))
        flows += [Flow(b, (a,), sizes[a]) for b in targets]
    # It sends and receives at once, so each byte counts half for either end.
    link = Link(per_megabyte=400_000, overlaps=True)
    replicas = tuple(range(1, devices + 1))
    return Problem(
        groups,
        flows,
        edges,
        [Devices(GPU, devices)],
        link,
        replicas,
        16,
        in_rounds=True,
    )


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1_000_000)
