"""Compile time is linear in the number of ops and in the number of nodes.

The tests count Python function calls, which, unlike seconds, are the same in every run;
bench/compile_time.py measures seconds.
"""

import cProfile
import runpy
import shutil
from itertools import pairwise

import pytest

from placer.compiler.driver import compile as compile_model
from placer.compiler.frontend import load
from placer.system.resources import find_file

chain = runpy.run_path(find_file("bench/compile_time.py"))["spec"]


def digits(n):
    return spec(
        nodes=f"worker: {{count: {n}}}, ps: {{count: 2}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:ps",
        batch=n,
    )


def servers(n):
    """Every server stores a block of each weight."""
    return spec(
        nodes=f"worker: {{count: 2}}, ps: {{count: {n}}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:ps",
        batch=2,
        extra="slicing: {min_block: 1}",
    )


def all_reduce(n):
    return spec(
        nodes=f"worker: {{count: {n}}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:worker",
        batch=n,
    )


def microbatches(n):
    return spec(
        nodes=f"worker: {{count: {n}}}, ps: {{count: 2}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:ps",
        batch=4 * n,
        extra="microbatches: 4",
    )


def stages(n):
    """A pipeline of two stages, each worker of which has a class of its own."""
    return spec(
        nodes=f"worker: {{count: {2 * n}}}",
        places=(f"/node:worker:0-{n - 1}", f"/node:worker:{n}-{2 * n - 1}"),
        optimizer="/node:worker",
        batch=4 * n,
        extra="microbatches: 4",
    )


def heter(n):
    return spec(
        nodes=f"worker: {{count: {n}}}, heter: {{count: 2}}",
        places=("/node:worker", "/node:heter"),
        optimizer="/node:worker",
        batch=n,
    )


def spec(*, nodes, places, optimizer, batch, extra=""):
    first, second = places
    return f"""
name: many
nodes: {{{nodes}}}
inputs: {{x: "float32[batch, 8]", y: "int32[batch]"}}
data: {{train: {{source: "npz:x.npz", batch: {batch}}}}}
graph:
  - {{name: h, op: fc, in: x, size: 500, activation: relu, place: "{first}"}}
  - {{name: z, op: fc, in: h, size: 5, place: "{second}"}}
  - {{name: loss, op: softmax_cross_entropy, in: [z, y], place: "{second}"}}
train:
  minimize: loss
  optimizer: {{op: sgd, learning_rate: 0.1, place: "{optimizer}"}}
  {extra}
"""


def calls_to_compile(folder, text):
    file, build = folder / "many.yaml", folder / "build"
    file.write_text(text)
    with cProfile.Profile() as profile:
        compile_model(load(file), build)
    shutil.rmtree(build)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(
    ("write_spec", "size"),
    [
        (chain, 100),
        (digits, 40),
        (servers, 20),
        (all_reduce, 40),
        (microbatches, 30),
        (stages, 10),
        (heter, 20),
    ],
)
def test_compile_time_is_linear(tmp_path, write_spec, size):
    calls_to_compile(tmp_path, write_spec(size))  # imports, and compiles patterns
    sizes = size, 2 * size, 4 * size
    calls = [calls_to_compile(tmp_path, write_spec(n)) for n in sizes]
    few, many = (b - a for a, b in pairwise(calls))
    assert many < 1.03 * 2 * few


def test_an_op_takes_no_longer_for_many_workers_than_for_few(tmp_path):
    calls_to_compile(tmp_path, chain(100))  # imports, and compiles patterns

    def calls_of_40_ops(workers):
        few, many = (
            calls_to_compile(tmp_path, chain(ops, workers=workers)) for ops in (20, 60)
        )
        return many - few

    assert calls_of_40_ops(100) < 1.05 * calls_of_40_ops(8)
