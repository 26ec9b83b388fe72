"""Cut a function for a test: its regions as text, and their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from placer.ops.functions.batch_types import TRACE_BATCHES
from placer.ops.functions.function import trace_function
from placer.ops.functions.run_region import fingerprint_of, run_region


def arguments_text(*types: str) -> str:
    """Return the text of arguments with these types; those with a batch are inputs."""
    return json.dumps([{"in" if "batch" in kind else "param": kind} for kind in types])


def region_lines(fn: Callable[..., Any], *types: str) -> list[str]:
    """Return a line for each region: its guards, and the names of its equations."""
    regions = trace_function(fn, arguments_text(*types), TRACE_BATCHES[0]).cut.regions
    return [
        f"{' '.join(region.guards) or '-'}: "
        + " ".join(eqn.primitive.name for eqn in region.closed.jaxpr.eqns)
        for region in regions
    ]


def check_same(fn: Callable[..., Any], *types: str, rows: int = 6) -> None:
    """Check that the regions, run one by one, compute what the function does."""
    text = arguments_text(*types)
    trace = trace_function(fn, text, rows)
    rng = np.random.default_rng(0)
    inputs = [
        rng.normal(size=kind.sizes(rows)).astype(kind.dtype)
        for kind in trace.arguments.types
    ]
    values = {(-1, i): x for i, x in enumerate(inputs)}
    for number, region in enumerate(trace.cut.regions):
        operands = [jax.numpy.asarray(values[source]) for source in region.operands]
        expected = fingerprint_of(fn, text, number)
        for k, out in enumerate(run_region(fn, text, number, rows, operands, expected)):
            values[number, k] = out
    results = jax.tree.leaves(fn(*inputs))
    assert len(results) == len(trace.cut.results)
    for source, result in zip(trace.cut.results, results, strict=True):
        np.testing.assert_allclose(values[source], result, rtol=1e-5, atol=1e-5)
