"""The microbatches of a step: whose turn it is, and what is kept from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from placer.layouts.conversions import Range, Share, part
from placer.tables.half_sums import is_half, rounded, wide_sum


@dataclass(slots=True)
class Microbatches:
    """A step in so many parts, gone through in these turns (`forward.0`; a block that is
    run once has no number). Without turns a step is one part.

    `number` is the microbatch that is run now, None between them.
    """

    parts: int = 1
    turns: Sequence[str] = ()
    number: int | None = None
    _kept: dict[tuple[int, str], Any] = field(default_factory=dict)
    _sums: dict[str, Any] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)
    """Sums that nobody else has seen."""
    _halves: dict[str, Any] = field(default_factory=dict)
    """The dtypes of values that are halves: their sums are float32 until taken."""
    _lists: dict[str, list[Any]] = field(default_factory=dict)

    def go(self) -> Iterator[str]:
        """The blocks, in turn, of a step that begins."""
        for turn in self.turns:
            block, _, number = turn.partition(".")
            self.number = int(number) if number else None
            yield block
        self.number = None
        assert not self._kept, list(self._kept)

    def range(self, count: int) -> Range:
        """Which of the rows of a global batch go through now."""
        if self.number is None:
            return 0, count
        return part(count, self.number, self.parts)

    def keep(self, values: dict[str, Any]) -> None:
        assert self.number is not None
        self._kept.update(((self.number, name), v) for name, v in values.items())

    def kept(self, names: Sequence[str], *, last: bool) -> tuple[Any, ...]:
        assert self.number is not None
        keys = [(self.number, name) for name in names]
        find = self._kept.pop if last else self._kept.__getitem__
        return tuple(find(key) for key in keys)

    def sum(self, values: dict[str, Any]) -> None:
        """Add what this microbatch has to what those before it had."""
        for name, value in values.items():
            if name not in self._sums:
                self._sums[name] = value
                continue
            if is_half(value.dtype):
                self._halves[name] = value.dtype
            if isinstance(value, np.ndarray):
                add = wide_sum
            else:
                add = _added_to() if name in self._own else _added()
                self._own.add(name)
            self._sums[name] = add(self._sums[name], value)

    def join(self, values: dict[str, Any]) -> None:
        """Put the rows of this microbatch behind those before it."""
        for name, value in values.items():
            self._lists.setdefault(name, []).append((self.number, value))

    def one(self, values: dict[str, Any]) -> None:
        """Take what is the same in all from the first that comes."""
        for name, value in values.items():
            self._sums.setdefault(name, value)

    def totals(self, names: Sequence[str]) -> tuple[Any, ...]:
        """What all microbatches have made together of these."""
        found = []
        for name in names:
            self._own.discard(name)
            if name in self._sums:
                total = self._sums.pop(name)
                half = self._halves.pop(name, None)
                found.append(total if half is None else rounded(total, half))
            else:
                parts = sorted(self._lists.pop(name), key=lambda each: each[0])
                found.append(_joined([value for _, value in parts]))
        return tuple(found)

    def split(self, value: Any, count: int) -> Any:
        """This microbatch's rows of a value that is made once."""
        low, high = self.range(count)
        return value[low:high]

    def first(self, value: Any) -> Any:
        """The value, in the first microbatch; zeros in the others."""
        return value if self.number == 0 else _zeros_like(value)


class MicrobatchCalls:
    """What a program calls for its microbatches, of a node that has `micro` and the
    `count` of rows of the global batch."""

    __slots__ = ()
    micro: Microbatches
    count: int

    @property
    def rows(self) -> int:
        """How many rows of the global batch go through now."""
        low, high = self.micro.range(self.count)
        return high - low

    def own_ranges(self, share: Share) -> Sequence[Range]:
        """Of those rows, which are this node's."""
        begin, end = self.micro.range(self.count)
        return [(begin + low, begin + high) for low, high in share.ranges(end - begin)]

    def microbatches(self) -> Iterator[str]:
        """Go through the blocks of a step, each for the microbatch whose turn it is."""
        return self.micro.go()

    def keep(self, **values: Any) -> None:
        """Keep values of this microbatch for a later block."""
        self.micro.keep(values)

    def kept(self, *names: str) -> tuple[Any, ...]:
        """What an earlier block has kept of this microbatch."""
        return self.micro.kept(names, last=False)

    def taken(self, *names: str) -> tuple[Any, ...]:
        """The same, for the last time."""
        return self.micro.kept(names, last=True)

    def sum(self, **values: Any) -> None:
        """Add up values over the microbatches."""
        self.micro.sum(values)

    def join(self, **values: Any) -> None:
        """Put the rows of all microbatches together."""
        self.micro.join(values)

    def one(self, **values: Any) -> None:
        """Keep what is the same in all microbatches."""
        self.micro.one(values)

    def totals(self, *names: str) -> tuple[Any, ...]:
        """What the microbatches have made together."""
        return self.micro.totals(names)

    def split(self, value: Any) -> Any:
        """The rows of this microbatch of a value that is made once a step."""
        return self.micro.split(value, self.count)

    def first(self, value: Any) -> Any:
        """The value in the first microbatch, zeros in the others: it counts once."""
        return self.micro.first(value)


@cache
def _added() -> Any:
    import jax

    return jax.jit(wide_sum)


@cache
def _added_to() -> Any:
    import jax

    return jax.jit(wide_sum, donate_argnums=0)


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import jax.numpy as jnp

    return jnp.concatenate(parts)


def _zeros_like(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    import jax.numpy as jnp

    return jnp.zeros_like(value)
