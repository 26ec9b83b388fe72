"""Merges what must be at one place: sets with common members, and cycles between sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Sets:
    """Disjoint sets of the numbers below `count`. Each number begins in its own set."""

    def __init__(self, count: int) -> None:
        self._parents = [*range(count)]

    def join(self, a: int, b: int) -> None:
        """Merge the sets of two numbers."""
        a, b = self.first(a), self.first(b)
        self._parents[max(a, b)] = min(a, b)

    def first(self, number: int) -> int:
        """Return the least number of the set of `number`."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def join_cycles(self, edges: Iterable[tuple[int, int]]) -> None:
        """Merge all sets on a cycle; an edge goes from the set of a number to that of another."""
        count = len(self._parents)
        pairs = {(self.first(a), self.first(b)) for a, b in edges}
        after: list[list[int]] = [[] for _ in range(count)]
        for a, b in sorted(pairs):
            if a != b:
                after[a].append(b)
        for component in _components(after):
            for number in component:
                self.join(component[0], number)


def _components(after: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph (Tarjan 1972)."""
    numbers: dict[int, int] = {}
    lows: dict[int, int] = {}
    on_stack: dict[int, None] = {}
    found: list[list[int]] = []
    for root in range(len(after)):
        if root in numbers:
            continue
        visits = [(root, iter(after[root]))]
        numbers[root] = lows[root] = len(numbers)
        on_stack[root] = None
        while visits:
            node, targets = visits[-1]
            for target in targets:
                if target not in numbers:
                    numbers[target] = lows[target] = len(numbers)
                    on_stack[target] = None
                    visits.append((target, iter(after[target])))
                    break
                if target in on_stack:
                    lows[node] = min(lows[node], numbers[target])
            else:
                visits.pop()
                if visits:
                    above = visits[-1][0]
                    lows[above] = min(lows[above], lows[node])
                if lows[node] == numbers[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(on_stack.popitem()[0])
                    found.append(component)
    return found
