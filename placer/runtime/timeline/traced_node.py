"""Records the calls of a program: methods of `Node` and jitted functions.

JAX returns from jitted functions and copies before the results are computed. While slices
are recorded, such a call waits for its results, so that its slice shows the real duration.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

import numpy as np

from placer.plan.table_text import name_tables
from placer.runtime.exchange.nested_tuples import leaves
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Hook, Hooks
from placer.runtime.timeline.recorder import (
    COMPUTE,
    COPY,
    READ,
    RECEIVE,
    RECORD,
    ROWS,
    SEND,
    STEP,
    UPDATE,
    WAIT,
    Recorder,
    now,
)

_BY_CATEGORY: Final[Mapping[str, str]] = {
    READ: "read",
    SEND: """send push answer offer push_delta send_sum send_keys send_keys_ahead send_rows
        send_row_gradients answer_rows""",
    RECEIVE: """receive send_and_recv sum_of_first pull pushed receive_keys
        receive_keys_ahead receive_rows receive_row_gradients asked_keys pushed_rows""",
    WAIT: "wait_for_workers",
    UPDATE: """merge update update_from_edges update_from update_rows store compute_directions
        apply_directions add_to_sums""",
    ROWS: "distinct_keys distributed_lookup_table sum_by_key exact_squares_of_rows",
    COPY: """memcpy_h2d memcpy_d2d memcpy_d2h parameters evaluation_parameters
        assemble_parameter cut""",
    COMPUTE: """exact_squares rounded_sum sum_microbatches join_microbatches
        microbatch_totals one_microbatch split_microbatches first_microbatch keep_values
        load_values pop_values""",
    RECORD: "record output",
}
CALLS: Final[Mapping[str, str]] = {
    name: category for category, names in _BY_CATEGORY.items() for name in names.split()
}
"""The category of each method of `Node`."""
ITERATORS: Final = frozenset({"microbatches", "batches", "messages"})
"""The methods of `Node` that return iterators."""
_OF_TABLES: Final = ("update", "compute_directions", "apply_directions", "store")


def methods() -> set[str]:
    """Return the names of the public methods of `Node`."""
    return {
        name
        for name in dir(Node)
        if not name.startswith("_") and isinstance(getattr(Node, name), FunctionType)
    }


@dataclass(slots=True)
class TracedNode(Node):
    """A node that records its calls while `recorder` is active."""

    recorder: Recorder = field(kw_only=True)

    def microbatches(self) -> Iterator[str]:
        """Run the tasks of a step; each task is a slice, such as `forward.3`."""
        for task in Node.microbatches(self):
            number = (
                ""
                if self.position.microbatch is None
                else f".{self.position.microbatch}"
            )
            start = now()
            yield task
            self.recorder.add(STEP, f"{task}{number}", start, now())

    def messages(self) -> Iterator[WorkerMessage]:
        """Yield the messages of workers; each wait for a message is a slice."""
        messages = Node.messages(self)
        while True:
            with self.recorder.slice(RECEIVE, "next message"):
                message = next(messages, None)
            if message is None:
                return
            yield message

    def batches(self) -> Iterator[int]:
        """Run the batches of an evaluation; each batch is a slice."""
        for batch in Node.batches(self):
            start = now()
            yield batch
            self.recorder.add(STEP, f"batch {batch}", start, now())


def _traced_method(name: str, category: str) -> Callable[..., Any]:
    call = getattr(Node, name)

    @functools.wraps(call)
    def traced(self: TracedNode, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if not recorder.active:
            return call(self, *args, **kwargs)
        of_table = category in (UPDATE, ROWS) and isinstance(args[0], str | tuple)
        title = f"{name} {name_tables(args[0])}" if of_table else name
        with recorder.slice(category, title):
            result = call(self, *args, **kwargs)
            if name in _OF_TABLES:
                _wait_for_results(self.tables[args[0]].values())
            elif name == "sum_microbatches":
                _wait_for_results(self.microbatch_calls.sums)
            elif category in (COPY, COMPUTE):
                _wait_for_results(result)
                if name == "memcpy_d2h":  # force the copy now; JAX caches the result
                    list(map(np.asarray, leaves(result)))
            return result

    return traced


for _name in methods() - ITERATORS:
    setattr(TracedNode, _name, _traced_method(_name, CALLS[_name]))


def traced_hooks(hooks: Hooks, recorder: Recorder) -> Hooks:
    """Return hooks that record evaluations and the jitted functions that they call."""
    return hooks._replace(
        step=_traced_hook(hooks.step, recorder),
        evaluate=hooks.evaluate and _traced_evaluation(hooks.evaluate, recorder),
        serve=hooks.serve and _with_traced_functions(hooks.serve, recorder),
    )


def _traced_evaluation(hook: Hook, recorder: Recorder) -> Hook:
    evaluate = _traced_hook(hook, recorder)

    def run(node: Node) -> None:
        with recorder.slice(STEP, node.position.where):
            evaluate(node)

    return run


def _traced_hook(hook: Hook, recorder: Recorder) -> Hook:
    traced = _with_traced_functions(hook, recorder)

    def run(node: Node) -> None:
        (traced if recorder.active else hook)(node)  # avoid the cost of tracing

    return run


def _with_traced_functions(hook: Hook, recorder: Recorder) -> Hook:
    """Return a copy of a hook that calls traced functions instead of jitted functions.

    Nodes that are threads share the module of their program. The module therefore does not
    change; the copy of the hook has different globals.
    """
    jax = sys.modules.get("jax")
    if jax is None:  # the program computes nothing
        return hook
    assert isinstance(hook, FunctionType)
    found = {
        name: _traced_function(name, value, recorder)
        for name, value in hook.__globals__.items()
        if isinstance(value, jax.stages.Wrapped)
    }
    return FunctionType(hook.__code__, {**hook.__globals__, **found}, hook.__name__)


def _traced_function(
    name: str, function: Callable[..., Any], recorder: Recorder
) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if not recorder.active:
            return function(*args, **kwargs)
        with recorder.slice(COMPUTE, name):
            results = function(*args, **kwargs)
            _wait_for_results(results)
            return results

    return traced


def _wait_for_results(values: Any) -> None:
    if (jax := sys.modules.get("jax")) is not None:
        jax.block_until_ready(values)
