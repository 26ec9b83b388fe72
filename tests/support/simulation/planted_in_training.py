"""Bugs that are planted in asynchronous training, to see that simulations find them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec import structs

from placer.plan.settings.training.update_modes import Async
from placer.runtime.asynchronous.communicator import Communicator
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.served_table import ServedTable
from placer.runtime.asynchronous.service import Service
from placer.runtime.exchange.worker_messages import MessageKind
from placer.tables.buffers import ValueBuffers
from placer.tables.dense import DenseTable
from support.simulation.planted import Bug, replacing, replacing_property

TRAINING_BUGS: list[Bug] = []


@replacing(PulledVersions, "pull", bugs=TRAINING_BUGS)
def the_bound_is_one_step_too_late(method: Any, end: PulledVersions, step: int) -> Any:
    mode = end._mode
    if isinstance(mode, Async) and mode.max_staleness != "none":
        later = structs.replace(mode, max_staleness=mode.max_staleness + 1)
        with patch.object(end, "_mode", later):
            return method(end, step)
    return method(end, step)


@replacing_property(ServedTable, "horizon", bugs=TRAINING_BUGS)
def the_fastest_worker_counts(served: ServedTable) -> int:
    return max(served.applied.values())


@replacing(ValueBuffers, "write_target", bugs=TRAINING_BUGS)
def parameters_are_read_during_an_update(method: Any, buffers: ValueBuffers) -> Any:
    return buffers.current


@replacing(ValueBuffers, "write_target", bugs=TRAINING_BUGS)
def a_buffer_is_used_again_before_its_readers_release_it(
    method: Any, buffers: ValueBuffers
) -> Any:
    if buffers._previous is not None:
        buffers._previous = buffers._previous[0], lambda: None  # type: ignore[assignment]
    return method(buffers)


@replacing(Service, "messages", bugs=TRAINING_BUGS)
def a_version_is_published_before_its_update(
    method: Any, service: Service
) -> Iterator[Any]:
    was_answered = False
    for message in method(service):
        served = service._served.get(message.edge)
        if served is not None:
            yield service._to_answer(served, message)
        if served is not None or not was_answered:
            yield message
        was_answered = served is not None


@replacing(Communicator, "_merge", bugs=TRAINING_BUGS)
def a_merge_has_the_newest_step_only(
    method: Any, end: PulledVersions, merged: Any
) -> Any:
    return method(end, merged[-1:])


@replacing(Communicator, "_waiting", bugs=TRAINING_BUGS)
def a_drain_overtakes_gradients(method: Any, end: PulledVersions) -> Any:
    if end._draining is not None:
        return MessageKind.DRAIN, end._draining
    return method(end)


@replacing(PulledVersions, "_usable", bugs=TRAINING_BUGS)
def a_worker_does_not_wait_for_its_own(
    method: Any, end: PulledVersions, step: int
) -> Any:
    with patch.object(end, "_sending", False):
        return method(end, step)


@replacing(PulledVersions, "_usable", bugs=TRAINING_BUGS)
def the_oldest_version_is_used(method: Any, end: PulledVersions, step: int) -> Any:
    if method(end, step) is None:
        return None
    return end._versions[min(end._versions)]


@replacing(Communicator, "push", bugs=TRAINING_BUGS)
def nobody_is_woken_by_gradients(
    method: Any, end: PulledVersions, *arguments: Any
) -> None:
    with patch.object(end._changed, "notify_all", lambda: None):
        method(end, *arguments)


@replacing(Communicator, "_receive", bugs=TRAINING_BUGS)
def nobody_is_woken_by_an_answer(method: Any, end: PulledVersions) -> None:
    with patch.object(end._changed, "notify_all", lambda: None):
        method(end)


@replacing(DenseTable, "update_in_chunks", bugs=TRAINING_BUGS)
def an_update_is_applied_twice(method: Any, table: DenseTable, **options: Any) -> Any:
    options["learning_rate"] *= 2
    return method(table, **options)
