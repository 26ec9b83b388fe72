"""Costs: how long the parts of a step take, from a cost file or from fixed rates.

A cost file, such as `costs.json`, has an entry for everything that was timed: pieces of
jitted functions by their ops, and the calls of a node by their method. An entry has samples at
one or more sizes: rows of a piece, bytes of a message, elements of an update. Between and
beyond the sizes, times are linear.

All times are CPU times in integer nanoseconds, so that predictions are equal on every
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median_low
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from placer.errors import PlacerError
from placer.system.files.regular import read_regular

STEPS: Final = 16
"""A prediction simulates this many steps, one for each quantile of the times."""
QUANTILES: Final = (10, 25, 50, 75, 90)
"""The percentiles of a sample in a cost file."""
VERSION: Final = 1
"""The version of the format of cost files."""
MAX_BYTES: Final = 64 << 20
"""The largest cost file that is read."""

Times = tuple[int, ...]
"""One time for each of `STEPS` quantiles, ascending, in nanoseconds."""

NOTHING: Final[Times] = (0,) * STEPS

Count = Annotated[int, Meta(ge=0, le=2**53)]
Microseconds = Annotated[int, Meta(ge=0, le=10**12)]


class Sample(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The times at one size.

    Attributes:
        size: the size, in the unit of the entry.
        us: the CPU times in microseconds at the percentiles `QUANTILES`, ascending.
        flops: the declared FLOPs of a piece at this size; 0 for other entries.
    """

    size: Count
    us: tuple[Microseconds, Microseconds, Microseconds, Microseconds, Microseconds]
    flops: Count = 0


class Machine(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of a cost file, and the versions of what was timed there.

    Attributes:
        processor: the name of the processor.
        cores: the number of cores that the measurement could use.
        devices: the name of each kind of device: `{"gpu": "NVIDIA H200"}`. A device that
            was emulated is `emulated`.
        versions: the versions of Python, placer, jax, jaxlib and numpy.
    """

    processor: str
    cores: Annotated[int, Meta(ge=1)]
    devices: dict[str, str]
    versions: dict[str, str]


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    machine: Machine
    entries: dict[str, Annotated[tuple[Sample, ...], Meta(min_length=1)]]


@dataclass(frozen=True)
class Costs:
    """The costs of one machine, or the fixed rates.

    Attributes:
        entries: the samples of each entry by its name, by ascending size.
        machine: the machine; None for the fixed rates.
        per_mflop: the nanoseconds of a million declared FLOPs in a piece without an entry.
        per_op: the nanoseconds of each op of such a piece, in addition.
    """

    entries: Mapping[str, Sequence[Sample]]
    machine: Machine | None
    per_mflop: int
    per_op: int = 0
    _known: dict[tuple[str, int], Times] = field(default_factory=dict, repr=False)

    def has(self, name: str) -> bool:
        """Whether the file has an entry of this name."""
        return name in self.entries

    def times(self, name: str, size: int) -> Times:
        """Return the times of an entry at a size.

        A single sample is proportional to the size. Several samples are interpolated, and
        extended beyond the outermost two, but never below 0. An entry that is missing in
        a cost file comes from the fixed rates.

        Raises:
            KeyError: neither the file nor the fixed rates have the entry.
        """
        key = name, size
        times = self._known.get(key)
        if times is None:
            samples = self.entries.get(name) or DECLARED.entries[name]
            times = self._known[key] = _at_size(samples, size)
        return times

    def entry_of_update(self, rule: str) -> str:
        """Return the entry of the updates of a rule."""
        entry = f"update {rule}"
        return entry if self.has(entry) else "update"

    def of_flops(self, flops: int, ops: int) -> Times:
        """Return the times of a piece without an entry, by its declared FLOPs."""
        return (self.per_mflop * flops // 1_000_000 + self.per_op * ops,) * STEPS

    @cached_property
    def missing_overheads(self) -> tuple[str, ...]:
        """The overheads that the file lacks, which then come from the fixed rates."""
        return tuple(name for name in DECLARED.entries if name not in self.entries)


def read_costs(path: Path) -> Costs:
    """Read a cost file.

    Raises:
        PlacerError: the file cannot be read, or is not a cost file of this version.

    Example:
        costs = read_costs(Path("costs.json"))
    """
    hint = "write it again: placer place SPEC --measure"
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise PlacerError(f"cannot read the costs '{path}': {error}") from error
    return parse_costs(data, str(path), hint)


def parse_costs(data: bytes, name: str, hint: str | None = None) -> Costs:
    """Return the costs of the content of a cost file; `name` is the file in errors."""
    try:
        head = msgspec.json.decode(data)
        version = head.get("version") if isinstance(head, dict) else None
        if version != VERSION:
            raise PlacerError(
                f"'{name}' is not a cost file of version {VERSION}: its version is"
                f" {'missing' if version is None else repr(version)[:40]}",
                hint=hint,
            )
        file = msgspec.convert(head, _File, strict=True)
        entries = {key: _checked(key, s) for key, s in file.entries.items()}
    except (ValueError, RecursionError) as error:  # msgspec errors are ValueErrors
        raise PlacerError(f"'{name}' is not a cost file: {error}", hint=hint) from error
    return Costs(entries, file.machine, _median_rate(entries))


def write_costs(costs: Costs) -> bytes:
    """Return the content of a cost file: keys sorted, and one sample in a line."""
    assert costs.machine is not None
    entries = {name: sorted(s, key=_size) for name, s in costs.entries.items()}
    content = msgspec.to_builtins(_File(VERSION, costs.machine, {}))
    lines = []
    for name in sorted(entries):
        samples = ",\n".join(f"   {_json(sample)}" for sample in entries[name])
        lines.append(f"  {_json(name)}: [\n{samples}\n  ]")
    machine = _json(_sorted(content["machine"]))
    body = "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"
    text = (
        f'{{\n "entries": {body},\n "machine": {machine},\n "version": {VERSION}\n}}\n'
    )
    return text.encode()


def measured_costs(entries: Mapping[str, Sequence[Sample]], machine: Machine) -> Costs:
    """Return the costs of measured samples, as they are after writing and reading them."""
    return parse_costs(
        write_costs(Costs(entries, machine, per_mflop=0)), "the measurement"
    )


def quantile_sample(size: int, times: Sequence[float], flops: int = 0) -> Sample:
    """Return the sample of measured nanoseconds, rounded to microseconds."""
    ordered, last = sorted(times), len(times) - 1
    us = [round(ordered[(last * q + 50) // 100] / 1_000) for q in QUANTILES]
    return Sample(size, (us[0], us[1], us[2], us[3], us[4]), flops)


def add(*terms: Times) -> Times:
    """Return the sums of times, quantile by quantile."""
    return tuple(map(sum, zip(*terms, strict=True))) if terms else NOTHING


def _size(sample: Sample) -> int:
    return sample.size


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _sorted(value: object) -> object:
    """Return a tree of JSON with the keys of all objects sorted."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


def _checked(name: str, samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return the samples of an entry by size; raise ValueError if they are no quantiles."""
    ordered = tuple(sorted(samples, key=_size))
    sizes = [sample.size for sample in ordered]
    if len({*sizes}) < len(sizes):
        raise ValueError(f"entry '{name}' has two samples of one size")
    for sample in ordered:
        if [*sample.us] != sorted(sample.us):
            raise ValueError(f"entry '{name}' has times that do not ascend")
    return ordered


def _median_rate(entries: Mapping[str, Sequence[Sample]]) -> int:
    """Return the median nanoseconds per million declared FLOPs of the timed pieces."""
    rates = [
        1_000 * sample.us[2] * 1_000_000 // sample.flops
        for samples in entries.values()
        for sample in samples
        if sample.flops and sample.us[2]  # others take less than half a microsecond
    ]
    return median_low(rates) if rates else DECLARED.per_mflop


def _at_size(samples: Sequence[Sample], size: int) -> Times:
    quantiles = [_line(samples, size, i) for i in range(len(QUANTILES))]
    return tuple(_quantile(quantiles, i) for i in range(STEPS))


def _line(samples: Sequence[Sample], size: int, quantile: int) -> int:
    """Return the nanoseconds of one percentile at a size."""
    if len(samples) == 1:
        (only,) = samples
        whole = 1_000 * only.us[quantile]
        return whole * size // only.size if only.size else whole
    above = next((i for i, s in enumerate(samples[1:-1], 1) if size <= s.size), -1)
    low, high = samples[above - 1], samples[above]
    width = high.size - low.size
    # Of two noisy samples the larger size may be the faster one.
    rise = 1_000 * max(0, high.us[quantile] - low.us[quantile])
    return max(0, 1_000 * low.us[quantile] + rise * (size - low.size) // width)


def _quantile(times: Sequence[int], index: int) -> int:
    """Return the quantile (index + 1/2) / STEPS, between those at `QUANTILES`."""
    # Hundredths of a percent keep the numbers whole.
    at = 10_000 * (2 * index + 1) // (2 * STEPS)
    points = [100 * q for q in QUANTILES]
    if at <= points[0]:
        return times[0]
    for i, point in enumerate(points[1:], 1):
        if at <= point:
            before = points[i - 1]
            rise = times[i] - times[i - 1]
            return times[i - 1] + rise * (at - before) // (point - before)
    return times[-1]


def _constant(base: float, per_thousand: float = 0.0) -> tuple[Sample, ...]:
    """Return an entry of `base` microseconds, and more for each thousand of its size."""
    # At 10⁹, per_thousand is exact to a microsecond in a million thousands.
    large = 10**9
    at_large = round(base + per_thousand * large / 1_000)
    return tuple(
        Sample(size, (us, us, us, us, us))
        for size, us in ((0, round(base)), (large, at_large))
    )


DECLARED: Final = Costs(
    # Medians of `placer place --measure` for mlp_pipeline, transformer_pipeline, digits_cnn
    # and wide_deep, rounded: two cores of an AMD EPYC, JAX 0.10. On a machine half as fast,
    # the same constants were fitted to traces of the same specs: twice as large.
    {
        "call": _constant(35),
        "call on another device": _constant(35),
        "call: arguments in host memory": _constant(0, 2_000),
        "call: arguments on a device": _constant(0, 1_000),
        "call: results": _constant(0, 5_000),
        "elementwise": _constant(0, 0.25),
        "other call": _constant(20),
        "read": _constant(80),
        "record": _constant(20),
        "task": _constant(25),
        "step": _constant(120),
        "sum of microbatches: arrays": _constant(60, 5_500),
        "sum of microbatches: bytes": _constant(0, 0.07),
        "update": _constant(60, 1.0),
        "send": _constant(45, 0.08),
        "receive": _constant(75, 0.15),
        "copy to a device": _constant(180, 0.05),
        "rows by key": _constant(150),
    },
    machine=None,
    per_mflop=14_000,
    per_op=8_000,
)
"""The fixed rates, without a cost file. They know no devices: an accelerator computes
as fast as the processor."""
