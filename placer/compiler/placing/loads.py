"""The load of every interval of an order: how long a stage takes that runs these groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from placer.compiler.placing.orders import Order
from placer.compiler.placing.problem import Devices, Problem


class Loads:
    """The loads of the intervals of one order; `[first, end)` is an interval.

    Args:
        problem: the groups, flows and devices.
        order: the order in which an interval is a stage.
    """

    def __init__(self, problem: Problem, order: Order) -> None:
        self.problem = problem
        self.order = order
        groups = [problem.groups[index] for index in order]
        kinds = [devices.kind for devices in problem.devices]
        self._work = {
            kind: _sums(
                group.time(kind) if kind in group.forward else 0 for group in groups
            )
            for kind in kinds
        }
        self._excluded = {
            kind: _sums(kind not in group.forward for group in groups) for kind in kinds
        }
        count = problem.microbatches
        self._least = _sums(
            count * min((group.time(kind) for kind in group.forward), default=0)
            for group in groups
        )
        self._once = _sums(group.once for group in groups)
        self._parameters = _sums(group.parameters for group in groups)
        self._stored = _sums(group.stored for group in groups)
        self._activations = _sums(group.activations for group in groups)
        self._transfers, self._messages = _crossing(problem, order)
        self._rows: dict[tuple[int, str, int], list[int]] = {}

    def row(self, first: int, devices: Devices, replicas: int) -> list[int]:
        """Return the nanoseconds of a step of the stages that begin at `first`, by end from
        `first + 1`. Calls with the same arguments return the same list."""
        key = first, devices.kind, replicas
        if key not in self._rows:
            self._rows[key] = self._make_row(first, devices, replicas)
        return self._rows[key]

    def load(self, first: int, end: int, devices: Devices, replicas: int) -> int:
        """Return the nanoseconds of a step of one stage."""
        return self.row(first, devices, replicas)[end - first - 1]

    def fixed(self, first: int, end: int, replicas: int) -> int:
        """Return the part of a load that is spent once in a step."""
        once = self._once[end] - self._once[first] + self.problem.update
        parameters = self._parameters[end] - self._parameters[first]
        return once + self.problem.exchanges(parameters, replicas)

    def least(self, first: int, end: int) -> int:
        """Return the nanoseconds of a step that devices together need at least."""
        return self._least[end] - self._least[first]

    def memory(self, first: int, end: int, replicas: int, live: int) -> int:
        """Return the bytes of a device that holds the activations of `live` microbatches."""
        activations = self._activations[end] - self._activations[first]
        stored = self._stored[end] - self._stored[first]
        return stored + -(-live * activations // replicas)

    def last(self, first: int, devices: Devices, replicas: int, live: int) -> int:
        """Return the last end of a stage that begins at `first`, by memory and by what the
        devices can run. Without any, this is `first`."""
        excluded = self._excluded[devices.kind]
        end = bisect_right(excluded, excluded[first]) - 1
        limit = devices.memory
        if limit is None or self.memory(first, end, replicas, live) <= limit:
            return end
        ends = range(first, end + 1)
        fits = bisect_right(
            ends, limit, key=lambda each: self.memory(first, each, replicas, live)
        )
        return first + fits - 1

    def _make_row(self, first: int, devices: Devices, replicas: int) -> list[int]:
        problem, count = self.problem, self.problem.microbatches
        link = problem.link
        begin = slice(first + 1, None)
        work, once = self._work[devices.kind], self._once
        start, start_once = work[first], once[first]
        computed = [
            -(-count * (value - start) // replicas)
            + count * problem.call
            + problem.update
            + step
            - start_once
            for value, step in zip(work[begin], once[begin], strict=True)
        ]
        if not devices.sends:
            return computed
        sent = [
            -(-count * transfer // replicas) + count * link.per_message * messages
            for transfer, messages in zip(
                self._transfers[first][begin], self._messages[first][begin], strict=True
            )
        ]
        if replicas > 1:
            parameters = self._parameters
            sent = [
                value + problem.exchanges(each - parameters[first], replicas)
                for value, each in zip(sent, parameters[begin], strict=True)
            ]
        if link.overlaps:
            return [*map(max, computed, sent)]
        return [a + b for a, b in zip(computed, sent, strict=True)]


def _sums(values: Iterable[int]) -> list[int]:
    """Return the sums of all prefixes, from the empty one."""
    return [*accumulate(values, initial=0)]


def _crossing(
    problem: Problem, order: Order
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the nanoseconds that bytes take which enter or leave an interval, and the
    number of messages, by its first and its end."""
    count = len(order)
    position = {group: place for place, group in enumerate(order)}
    # What changes from one first to the next: (end, nanoseconds, messages).
    changes: list[list[tuple[int, int, int]]] = [[] for _ in range(count + 1)]
    whole = problem.link.per_message
    for flow in problem.flows:
        source = position[flow.source]
        targets = sorted({position[each] for each in flow.targets} - {source})
        cost = problem.link.time(flow.nbytes) - whole
        for firsts, ends, sign in _rectangles(source, targets, count):
            for at, signed in (firsts[0], sign), (firsts[1], -sign):
                changes[at].append((ends[0], signed * cost, signed))
                changes[at].append((ends[1], -signed * cost, -signed))
    transfers, messages = [0] * (count + 2), [0] * (count + 2)
    all_transfers, all_messages = [], []
    for at in range(count):
        for end, cost, number in changes[at]:
            transfers[end] += cost
            messages[end] += number
        all_transfers.append([*accumulate(transfers)][: count + 1])
        all_messages.append([*accumulate(messages)][: count + 1])
    return all_transfers, all_messages


_Range = tuple[int, int]


def _rectangles(
    source: int, targets: list[int], count: int
) -> list[tuple[_Range, _Range, int]]:
    """Return ranges of firsts and of ends, and 1 or -1: the signs of the ranges that an
    interval is in sum up to 1 if the value enters or leaves it, otherwise to 0."""
    if not targets:
        return []
    low, high = min(source, targets[0]), max(source, targets[-1])
    # With its source inside, a value leaves unless all targets are inside too.
    found = [
        ((0, source + 1), (source + 1, count + 1), 1),
        ((0, low + 1), (high + 1, count + 1), -1),
    ]
    # It enters an interval before its source by the last target inside.
    left = [each for each in targets if each < source]
    for target, following in zip(left, [*left, source][1:], strict=True):
        found.append(((0, target + 1), (target + 1, following + 1), 1))
    # It enters an interval behind its source by the first target inside.
    right = [each for each in targets if each > source]
    for previous, target in zip([source, *right], right, strict=False):
        found.append(((previous + 1, target + 1), (target + 1, count + 1), 1))
    return found
