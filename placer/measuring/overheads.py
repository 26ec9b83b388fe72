"""Times the calls that do not depend on the ops of a spec.

They run between the steps of a program, so that caches are as cold as in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

import numpy as np
from msgspec import structs

from placer.compiler.placing.functions import CALL_ELSEWHERE
from placer.plan.plan import MEMORY, Table
from placer.runtime.exchange.devices import Devices
from placer.runtime.node.microbatches import Microbatches
from placer.system.memory import aligned
from placer.tables.dense import DenseTable

FEW: Final = 1
MANY: Final = 33
"""The numbers of arrays of a call: the difference is the time of 32 arrays."""
SIDE: Final = 32
"""The rows and columns of a small array, whose product JAX computes as any function: it
would compute a cheaper one at once, without another thread."""
LARGE: Final = 1 << 18
"""The elements of a large array: 1 MiB of float32."""

Case = tuple[str, int]
"""What is timed, and its size."""


class Overheads:
    """The cases that are timed, and their times so far.

    Args:
        tables: the dense tables of the program; each kind of update is timed on one block.
        device: another device than the processor, for copies and calls; None if there is
            none.
        by_wall: whether that device is timed by wall clock.

    Attributes:
        times: the nanoseconds of each case.
    """

    def __init__(
        self, tables: tuple[Table, ...], device: Any = None, *, by_wall: bool = False
    ) -> None:
        self._cases: dict[Case, Callable[[], Any]] = dict(_calls())
        self._cases |= dict(_sums())
        self._cases |= dict(_updates(tables))
        self._by_wall: set[Case] = set()
        if device is not None:
            of_device = dict(_on_device(device))
            self._cases |= of_device
            self._by_wall = {*of_device} if by_wall else set()
        self.times: dict[Case, list[int]] = {case: [] for case in self._cases}
        for _ in range(3):  # compile, and donate the first sums
            for call in self._cases.values():
                _wait(call())

    def run(self) -> None:
        """Time each case once."""
        _wait(self._cases["call", FEW]())  # functions of a step also follow others
        for case, call in self._cases.items():
            clock = perf_counter_ns if case in self._by_wall else process_time_ns
            start = clock()
            _wait(call())
            self.times[case].append(clock() - start)


def _wait(values: Any) -> None:
    import jax

    jax.block_until_ready(values)


def _host(numel: int) -> np.ndarray[Any, Any]:
    return aligned.zeros((numel,), np.dtype(np.float32))


def _calls() -> Iterator[tuple[Case, Callable[[], Any]]]:
    import jax
    import jax.numpy as jnp

    take = jax.jit(lambda arrays: arrays[0] @ arrays[0], keep_unused=True)
    give = jax.jit(lambda array: [array @ array, *(array + i for i in range(1, MANY))])
    add = jax.jit(jnp.add)
    on_host = [_host(SIDE * SIDE).reshape(SIDE, SIDE) for _ in range(MANY)]
    on_device = [jax.device_put(each) for each in on_host]
    large = jax.device_put(_host(LARGE))
    yield ("call: arguments on a device", MANY), lambda: take(on_device)
    yield ("call", FEW), lambda: take(on_device[:1])
    yield ("call: arguments in host memory", MANY), lambda: take(on_host)
    yield ("call: results", MANY), lambda: give(on_device[0])
    yield ("elementwise", 2 * LARGE), lambda: add(large, large)


def _sums() -> Iterator[tuple[Case, Callable[[], Any]]]:
    import jax

    for case, count, numel in (
        ("sum of microbatches: arrays", FEW, SIDE * SIDE),
        ("sum of microbatches: arrays", MANY, SIDE * SIDE),
        ("sum of microbatches: bytes", FEW, LARGE),
    ):
        calls, size = Microbatches(), count if numel == SIDE * SIDE else 4 * LARGE
        terms = tuple(jax.device_put(_host(numel)) for _ in range(count))

        def once(calls: Microbatches = calls, terms: Any = terms) -> Any:
            calls.sum_microbatches(g=terms)
            return calls.sums

        yield (case, size), once


def _updates(tables: tuple[Table, ...]) -> Iterator[tuple[Case, Callable[[], Any]]]:
    """Yield the update of one small block for each rule."""
    for planned in {t.rule: t for t in tables if t.devices == MEMORY}.values():
        if planned.rule is None or planned.transformation or len(planned.blocks) < 2:
            continue
        block = min(planned.blocks, key=lambda each: each.numel)
        table = DenseTable(
            structs.replace(planned, blocks=(block,), in_place=False),
            "float32",
            [np.zeros(block.shape, np.float32)],
        )
        if len(table.kernels) > 1:
            continue
        gradient = np.zeros(block.shape, np.float32)

        def once(table: DenseTable = table, gradient: Any = gradient) -> None:
            table.update([gradient], learning_rate=0.0)

        yield (f"update {planned.rule}", block.numel), once


def _on_device(device: Any) -> Iterator[tuple[Case, Callable[[], Any]]]:
    """Yield a call of another device, and copies to it."""
    import jax

    take = jax.jit(lambda array: array @ array)
    there = jax.device_put(np.zeros((SIDE, SIDE), np.float32), device)
    yield (CALL_ELSEWHERE, FEW), lambda: take(there)
    devices = Devices({MEMORY: (jax.devices("cpu")[0],), "device:0": (device,)})
    for numel in (SIDE * SIDE, LARGE):
        array = _host(numel)

        def copy(array: Any = array) -> Any:
            return devices.copy_to_devices((array,), "device:0")

        yield ("copy to a device", 4 * numel), copy
