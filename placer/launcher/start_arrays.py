"""Lets a run from Python start with a dict of arrays as `init_params`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from placer.errors import DataError, PlacerError
from placer.place.types import TensorType
from placer.plan.plan import Plan
from placer.runtime.control.options import Options

NAME = "init_params"


@contextmanager
def options_of(given: Mapping[str, Any]) -> Iterator[Options]:
    """Yield the options of keyword arguments. If `init_params` is a dict of arrays, the
    arrays are written to a temporary file, which the option names. The end of the
    context removes the file. Raises PlacerError if an option has an invalid value."""
    if not _has_arrays(given):
        yield Options(**given)
        return
    from placer.runtime.saving.parameter_files import file_of_parameters

    with file_of_parameters(given[NAME], NAME) as file:
        yield Options(**{**given, NAME: file})


def check_arrays(
    plan: Plan, given: Mapping[str, Any], options: Options, *, elsewhere: bool
) -> None:
    """Check the dict of arrays in `init_params`, if it is one.

    Args:
        plan: the plan.
        given: the keyword arguments.
        options: the result of `options_of` for these arguments.
        elsewhere: True if the nodes run on other machines, which cannot read the file.

    Raises:
        PlacerError: the nodes run on other machines.
        DataError: the arrays do not match the parameters of the model, or are not finite.
    """
    if not _has_arrays(given):
        return
    if elsewhere:
        raise PlacerError(
            f"'{NAME}' is a dict, but the nodes run on other machines",
            hint="write the dict to a file there with safetensors.numpy.save_file, "
            "and pass its path",
        )
    import numpy as np

    from placer.checkpoint.finite import HINT, find_not_finite
    from placer.runtime.saving.parameter_files import check
    from placer.runtime.saving.start_parameters import check_start, open_parameters

    assert options.init_params is not None
    start = open_parameters(options.init_params, lambda why: None, finite=False)
    declared = {p.name: TensorType(p.dtype, p.shape) for p in plan.parameters}
    try:
        check(start.types, declared)
    except DataError as error:
        hint = "use the names, shapes and dtypes of result.params"
        raise DataError(f"'{NAME}': {error.message}", hint=hint) from None
    tables = {each.name: each for each in plan.sparse_tables}
    check_start(replace(start, file=Path(NAME)), declared, tables)
    arrays = {name: np.asarray(value) for name, value in given[NAME].items()}
    if plan.settings.train.nan == "stop" and (problem := find_not_finite(arrays)):
        raise DataError(f"'{NAME}': {problem}", hint=HINT)


def _has_arrays(given: Mapping[str, Any]) -> bool:
    return not isinstance(given.get(NAME), str | os.PathLike | None)
