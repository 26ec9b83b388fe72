"""A function cut for a test: its regions as text, and run one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from placer.regions.batch_types import SIZES
from placer.regions.function import likeness_of, run, traced


def text_of(*types: str) -> str:
    """Arguments of these types; those with a batch are inputs."""
    return json.dumps([{"in" if "batch" in kind else "param": kind} for kind in types])


def regions(fn: Callable[..., Any], *types: str) -> list[str]:
    """Of each region the place that its guards say, and its equations."""
    found = traced(fn, text_of(*types), SIZES[0]).cut.regions
    return [
        f"{' '.join(region.said) or '-'}: "
        + " ".join(eqn.primitive.name for eqn in region.closed.jaxpr.eqns)
        for region in found
    ]


def check_same(fn: Callable[..., Any], *types: str, rows: int = 6) -> None:
    """The regions, each run by its number, come to what the function does."""
    text = text_of(*types)
    trace = traced(fn, text, rows)
    rng = np.random.default_rng(0)
    inputs = [
        rng.normal(size=kind.sizes(rows)).astype(kind.dtype)
        for kind in trace.arguments.types
    ]
    values = {(-1, i): x for i, x in enumerate(inputs)}
    for number, region in enumerate(trace.cut.regions):
        taken = [jax.numpy.asarray(values[source]) for source in region.takes]
        same = likeness_of(fn, text, number)
        for k, out in enumerate(run(fn, text, number, rows, taken, same)):
            values[number, k] = out
    wanted = jax.tree.leaves(fn(*inputs))
    assert len(wanted) == len(trace.cut.results)
    for source, want in zip(trace.cut.results, wanted, strict=True):
        np.testing.assert_allclose(values[source], want, rtol=1e-5, atol=1e-5)
