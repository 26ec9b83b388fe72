"""Describes a traced function for a spec: its regions, with named values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import save

from placer.errors import PlacerError
from placer.ops.functions.batch_types import TRACE_BATCHES, result_type, trace_batches
from placer.ops.functions.cut import OUTSIDE, Region, ValueSource
from placer.ops.functions.fingerprint import fingerprint
from placer.ops.functions.flatten import Guards
from placer.ops.functions.function import (
    TracedFunction,
    is_deterministic,
    trace_function,
)
from placer.ops.functions.mode import EVALUATION, TRAINING, Mode
from placer.ops.functions.row_proof import is_by_rows
from placer.ops.functions.trace import assigned_paths, may_differ
from placer.place.types import BATCH, ITEM_BYTES, TensorType


class Pair(NamedTuple):
    """The traces of a function for `TRACE_BATCHES`."""

    small: TracedFunction
    large: TracedFunction
    mode: Mode


@dataclass(frozen=True, slots=True)
class RegionDescription:
    """A region: its guards, the names of its operands, and its results with types.

    `batch` is `rows` or `whole` if it differs from the rule of the function.
    """

    guards: Guards
    operands: list[str]
    results: dict[str, TensorType]
    batch: str | None


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """The regions of a traced function, and its results.

    Attributes:
        regions: the regions; in training, if evaluation has others.
        evaluation: the regions in evaluation; None if they are the same.
        switched: by result, its values in training and in evaluation, if they differ.
        is_by_rows: row i of every result depends only on row i of the inputs.
        state: by parameter that is state, the name of its new value.
        results: the names of the results.
        tree: the pytree structure of the results.
    """

    regions: list[RegionDescription]
    evaluation: list[RegionDescription] | None
    switched: dict[str, tuple[str, str]]
    state: dict[str, str]
    is_by_rows: bool
    results: list[str]
    tree: Any

    def unflatten(self, values: Sequence[Any]) -> Any:
        """Return the function's pytree of results, with these values as leaves."""
        return jax.tree.unflatten(self.tree, values)


def describe(
    fn: Callable[..., Any],
    args: str,
    values: Sequence[str],
    name: str,
    *,
    state: Sequence[str] = (),
    rows: bool | None,
    wide: bool,
    parts: int = 0,
    axis: str = "",
) -> FunctionDescription:
    """Trace and cut a function for the op `name`.

    Args:
        args: the text of its arguments (`placer.ops.functions.arguments`).
        values: the names of their values.
        state: those that the function assigns in training, in order.
        rows: whether row i of the results depends only on row i of the inputs; None
            tries to prove it.
        wide: whether the precision is float64.
        parts: if not 0, the function computes one of this many parts of the batch.
        axis: the name of the axis over the parts.

    Raises:
        PlacerError: if the function cannot be cut. Errors of the function propagate.
    """
    with jax.enable_x64(wide):
        modes = [EVALUATION]
        if parts:
            modes = _modes_of_parts(fn, args, parts, axis)
        elif may_differ(fn, args):
            modes = [TRAINING, EVALUATION]
        for mode in modes:
            _check_traces(fn, args, mode)
        if rows is None and not parts:
            rows = all(is_by_rows(fn, args, mode=mode) for mode in modes)
        if rows:
            modes = [replace(mode, by_rows=True) for mode in modes]
        traces = [_traces(fn, args, mode) for mode in modes]
        if len(traces) > 1 and _same_regions(*traces):
            traces = traces[1:]
        if not any(trace.small.cut.regions for trace in traces):
            raise PlacerError("it computes nothing from its arguments")
        return _Describer(name, values, state, bool(rows)).describe(*traces)


def _modes_of_parts(
    fn: Callable[..., Any], args: str, parts: int, axis: str
) -> list[Mode]:
    """Return the modes of training and of evaluation for a function of parts.

    An evaluation that works row by row needs no parts, so it can have any batch.
    """
    training = Mode(training=True, parts=parts, axis=axis)
    if is_by_rows(fn, args, mode=EVALUATION):
        return [training, replace(EVALUATION, by_rows=True)]
    return [training, replace(training, training=False)]


def assigned_state(
    fn: Callable[..., Any], args: str, wide: bool, parts: int = 0, axis: str = ""
) -> list[str]:
    """Return the paths of leaves of arguments that a function changes in training.

    `parts` and `axis` are those of `describe`.
    """
    with jax.enable_x64(wide):
        return assigned_paths(fn, args, replace(TRAINING, parts=parts, axis=axis))


def _traces(fn: Callable[..., Any], args: str, mode: Mode) -> Pair:
    small, large = (trace_function(fn, args, size, mode) for size in TRACE_BATCHES)
    return Pair(small, large, mode)


def _check_traces(fn: Callable[..., Any], args: str, mode: Mode) -> None:
    pair = _traces(fn, args, mode)
    if _structure(pair.small) != _structure(pair.large):
        raise PlacerError(
            "its regions depend on the number of rows",
            hint="perform the same operations for any number of rows",
        )
    if not is_deterministic(fn, args, TRACE_BATCHES[0], mode):
        raise PlacerError(
            "its traces differ: it draws from np.random or random, or keeps"
            " state between calls",
            hint="create such numbers outside of the function, at the top of its file",
        )


def _same_regions(training: Pair, evaluation: Pair) -> bool:
    one, other = training.small, evaluation.small
    if one.state or other.state or training.mode.parts != evaluation.mode.parts:
        return False
    prints = [[fingerprint(each) for each in x.cut.regions] for x in (one, other)]
    return prints[0] == prints[1] and _structure(one) == _structure(other)


class _Describer:
    """Names the values of a function's regions."""

    def __init__(
        self, name: str, values: Sequence[str], state: Sequence[str], rows: bool
    ) -> None:
        self._name = name
        self._values = values
        self._state = state
        self._rows = rows
        self._is_parted = False
        self._intermediates = 0
        self._types: dict[str, TensorType] = {}

    def describe(
        self, first: Pair, evaluation: Pair | None = None
    ) -> FunctionDescription:
        """Describe a function by its traces; with `evaluation`, `first` is of training."""
        name, tree = self._name, _tree(first)
        self._is_parted = first.mode.parts > 0
        if evaluation is None:
            computed = _computed(first.small)
            named = self._results(computed, "out", name)
            regions, results = self._regions(first, named)
            return FunctionDescription(regions, None, {}, {}, self._rows, results, tree)
        if _tree(evaluation) != tree:
            raise PlacerError(
                f"it returns {tree} in training, but {_tree(evaluation)} in evaluation",
                hint="return the same structure of arrays from both",
            )
        (training_regions, of_training), (regions, of_evaluation) = (
            self._regions(
                pair, self._results(_computed(pair.small), word, f"{name}.{word}")
            )
            for pair, word in ((first, "training"), (evaluation, "evaluation"))
        )
        count = len(of_evaluation)
        new = dict(zip(self._state, of_training[count:], strict=True))
        pairs = list(zip(of_training[:count], of_evaluation, strict=True))
        switched = dict.fromkeys(pair for pair in pairs if len({*pair}) == 2)
        self._check_types(switched, first.small.arguments.types)
        names = {
            pair: name if len(switched) == 1 else f"{name}.out{i}"
            for i, pair in enumerate(switched)
        }
        return FunctionDescription(
            training_regions,
            regions,
            {result: pair for pair, result in names.items()},
            new,
            self._rows,
            [names.get(pair, pair[0]) for pair in pairs],
            tree,
        )

    def _check_types(
        self, pairs: Iterable[tuple[str, str]], inputs: Sequence[TensorType]
    ) -> None:
        types = self._types | dict(zip(self._values, inputs, strict=True))
        for training, evaluation in pairs:
            if types[training] != types[evaluation]:
                raise PlacerError(
                    f"a result is {types[training]} in training, but"
                    f" {types[evaluation]} in evaluation",
                    hint="return arrays of the same types from both",
                )

    def _results(
        self, computed: Sequence[ValueSource], word: str, only: str
    ) -> dict[ValueSource, str]:
        """Return names of computed results: `only`, or numbered ones."""
        if len(computed) == 1:
            return {computed[0]: only}
        return {s: f"{self._name}.{word}{i}" for i, s in enumerate(computed)}

    def _regions(
        self, traces: Pair, named: Mapping[ValueSource, str]
    ) -> tuple[list[RegionDescription], list[str]]:
        """Return the regions of a function, and the names of its results."""
        names = {(OUTSIDE, i): value for i, value in enumerate(self._values)}
        names.update(named)
        small, large, mode = traces
        if small.state:
            news = small.cut.results[-small.state :]
            for value, source in zip(self._state, news, strict=True):
                if source in names:
                    raise PlacerError(
                        f"the new value of '{value}' is '{names[source]}'",
                        hint="assign a state a value of its own",
                    )
                names[source] = f"{value}.new"
        regions = []
        for at, (one, other) in enumerate(
            zip(small.cut.regions, large.cut.regions, strict=True)
        ):
            avals = zip(one.closed.out_avals, other.closed.out_avals, strict=True)
            types = [_result_type(one, k, *pair, mode) for k, pair in enumerate(avals)]
            if not types:
                raise PlacerError(
                    f"the results of the region of {one.describe_start()} are not used",
                    hint="put the guard around the code that uses its results as well",
                )
            for k in range(len(types)):
                if (at, k) not in names:
                    names[at, k] = f"{self._name}.mid{self._intermediates}"
                    self._intermediates += 1
            if mode.by_rows:
                _check_rows(one, types, [names[at, k] for k in range(len(types))])
            results = {names[at, k]: kind for k, kind in enumerate(types)}
            self._types |= results
            operands = [names[source] for source in one.operands]
            batch = self._batch_of(one, mode)
            regions.append(RegionDescription(one.guards, operands, results, batch))
        return regions, [names[source] for source in small.cut.results]

    def _batch_of(self, region: Region, mode: Mode) -> str | None:
        """Return the batch rule of a region, if it differs from that of the function."""
        if not self._is_parted:
            return None
        if not mode.parts:
            return "rows"
        return "whole" if region.split is None else None


def _tree(traces: Pair) -> Any:
    return jax.tree.structure(traces.small.results)


def _computed(trace: TracedFunction) -> list[ValueSource]:
    """Return the sources of results that are no inputs, each once."""
    results = trace.cut.results[: len(trace.cut.results) - trace.state]
    return list(dict.fromkeys(s for s in results if s[0] != OUTSIDE))


def pack_arrays(arrays: Mapping[str, Any], integers: Mapping[str, str]) -> bytes:
    """Return a safetensors file with these arrays; equal arrays give equal bytes.

    `integers` has the dtypes of integers and booleans by name. Raises PlacerError if an
    array has other values than its dtype.
    """
    converted = {n: _convert(n, arrays[n], integers.get(n)) for n in sorted(arrays)}
    ordered = {n: np.ascontiguousarray(array) for n, array in converted.items()}
    shaped = {n: ordered[n].reshape(np.shape(arrays[n])) for n in ordered}
    return bytes(save(shaped))


def _convert(name: str, value: Any, dtype: str | None) -> Any:
    array = np.asarray(value)
    if dtype is None:
        return array
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise PlacerError(
            f"the initial values of '{name}' are no values of {dtype}",
            hint="with precision='float64', a program has 64-bit integers"
            if dtype in ("int32", "uint32")
            else f"pass values of {dtype}",
        )
    return converted


def _structure(trace: TracedFunction) -> object:
    regions = [
        (each.guards, each.operands, len(each.closed.out_avals))
        for each in trace.cut.regions
    ]
    return regions, trace.cut.results, jax.tree.structure(trace.results)


def _result_type(
    region: Region, index: int, small: Any, large: Any, mode: Mode
) -> TensorType:
    what = f"the result of {region.describe_result(index)}, which another place needs,"
    if str(small.dtype) not in ITEM_BYTES or str(small.dtype) == "key":
        raise PlacerError(
            f"{what} is {small.dtype}, which cannot be sent in a message",
            hint="compute and use it inside one guard",
        )
    kind = "equal" if region.split is None else region.split.results[index]
    if kind in ("equal", "sum"):
        return result_type(what, small, large, trace_batches(mode.parts))
    type_ = result_type(what, small, large)
    if kind == "value":
        return TensorType(type_.dtype, (BATCH, *type_.shape))
    return type_


def _check_rows(
    region: Region, types: Sequence[TensorType], names: Sequence[str]
) -> None:
    if not any(kind.has_batch for kind in types):
        return  # the results depend on no row, or on all rows
    for index, (kind, name) in enumerate(zip(types, names, strict=True)):
        if not kind.has_rows:
            if name.endswith(".new"):
                raise PlacerError(
                    f"with batch='rows' the state '{name.removesuffix('.new')}' must not"
                    " depend on the rows",
                    hint="pass batch='whole'",
                )
            raise PlacerError(
                "with batch='rows' all values that leave a place must have rows,"
                f" but the result of {region.describe_result(index)} is {kind}",
                hint="pass batch='whole', or reduce over rows with an op of"
                " placer.layers",
            )
