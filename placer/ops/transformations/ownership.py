"""Assigns the state to parameters, and finds the parameters that depend on each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from placer.ops.transformations.dependence import Kind, find_dependence
from placer.ops.transformations.trace import Traced
from placer.plan.settings.training.transformations import RESERVED, LeafKind

NOT_ELEMENTWISE = "its update is not computed element by element"
"""Why a parameter of `Ownership.whole` is not cut into blocks."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The parameters of an optimizer, and their state.

    Attributes:
        owners: for each leaf, the number of its parameter; None for a shared leaf.
        kinds: for each leaf, its kind.
        names: for each leaf, its name among the leaves of its parameter.
        together: the groups of parameters that depend on each other, by number.
        whole: the other parameters that are not updated element by element.
    """

    owners: tuple[int | None, ...]
    kinds: tuple[LeafKind, ...]
    names: tuple[str, ...]
    together: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]


@lru_cache(maxsize=16)
def find_owners(traced: Traced) -> Ownership:
    """Assign each leaf of the state to a parameter, or to all of them."""
    count = len(traced.names)
    found = find_dependence(traced)
    of_leaves = _reach([leaf.sources for leaf in found.leaves], count)

    def reach(sources: int) -> int:
        """Return all sources, including those of the leaves among them."""
        for i in _bits(sources >> count):
            sources |= of_leaves[i]
        return sources

    reached = [reach(values[0].sources | values[-1].sources) for values in found.values]
    parameters = (1 << count) - 1
    groups = _Groups(count)
    for i, sources in enumerate(reached):
        groups.join([i, *_bits(sources & parameters)])
    numbers = {name: i for i, name in enumerate(traced.names)}
    users: list[list[int]] = [[] for _ in traced.leaves]
    for i, sources in enumerate(reached):
        for at in _bits(sources >> count):
            users[at].append(i)
    owners: list[int | None] = []
    for number, leaf in enumerate(traced.leaves):
        needs = list(_bits(of_leaves[number] & parameters))
        named = numbers.get(leaf.parameter)
        if needs:
            tied = [*([] if named is None else [named]), *needs]
            groups.join([*tied, *users[number]])
            owners.append(tied[0])
        else:
            is_only_user = named is not None and set(users[number]) <= {named}
            owners.append(named if is_only_user else None)
    together = groups.several()
    tied_parameters = {i for group in together for i in group}
    kinds: list[LeafKind] = []
    whole = {
        i
        for i, values in enumerate(found.values)
        if any(v.kind != Kind.ELEMENT or v.owner != i for v in values)
    }
    for owner, leaf, value in zip(owners, traced.leaves, found.leaves, strict=True):
        if owner is None:
            kinds.append("shared")
            continue
        has_shape = leaf.shape == traced.shape(owner)
        is_element = value.kind == Kind.ELEMENT and value.owner == owner
        if has_shape and (is_element or value.kind == Kind.FILL):
            kinds.append("slot")
            continue
        kinds.append("own")
        if value.kind != Kind.FILL:
            whole.add(owner)
    return Ownership(
        tuple(owners),
        tuple(kinds),
        _names(traced, owners),
        together,
        tuple(sorted(whole - tied_parameters)),
    )


def _reach(sources: list[int], count: int) -> list[int]:
    """Return the sources of each leaf, including those of the leaves among them."""
    reached = list(sources)
    while True:
        before = list(reached)
        for i, mine in enumerate(before):
            for at in _bits(mine >> count):
                reached[i] |= reached[at]
        if reached == before:
            return reached


def _bits(mask: int) -> Iterable[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _names(traced: Traced, owners: list[int | None]) -> tuple[str, ...]:
    """Return the names of the leaves; a leaf of no or of another parameter has its path."""
    names = []
    for owner, leaf in zip(owners, traced.leaves, strict=True):
        is_own = owner is not None and traced.names[owner] == leaf.parameter
        names.append(leaf.name if is_own else ".".join(leaf.path) or leaf.name)
    shared = [n for n, owner in zip(names, owners, strict=True) if owner is None]
    seen: set[tuple[int | None, str]] = set()
    for i, (owner, leaf) in enumerate(zip(owners, traced.leaves, strict=True)):
        if (owner, names[i]) in seen or (owner is not None and names[i] in shared):
            names[i] = ".".join(leaf.path)
        seen.add((owner, names[i]))
    return tuple(
        f"state.{name}" if name.partition(".")[0] in RESERVED else name
        for name in names
    )


class _Groups:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def join(self, numbers: Iterable[int]) -> None:
        first, *others = {self._root(number) for number in numbers}
        for other in others:
            self._parents[other] = first

    def several(self) -> tuple[tuple[int, ...], ...]:
        """Return the sets of at least two numbers, in order."""
        sets: dict[int, list[int]] = {}
        for number in range(len(self._parents)):
            sets.setdefault(self._root(number), []).append(number)
        return tuple(tuple(each) for each in sets.values() if len(each) > 1)

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number
