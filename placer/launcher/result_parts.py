"""The history and the parameters of a `Result`."""

from __future__ import annotations

import json
import math
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from placer.errors import PlacerError
from placer.place.types import ITEM_BYTES
from placer.plan.plan import Plan
from placer.runtime.control.events import Event, Recovered, Step
from placer.runtime.control.options import Options
from placer.runtime.control.result import Params, Result

MAX_RETURNED: Final = 256 << 20
"""The largest size of parameters, in bytes, that a result includes by default."""


class StepHistory:
    """The steps of a run as compressed lines of JSON, because a run may have millions."""

    def __init__(self) -> None:
        self._clear()

    def add(self, event: Event) -> None:
        """Add the event if it is a step. Remove the steps that other steps will replace."""
        if isinstance(event, Recovered) and event.replaces:
            lines = [line for line in self.read() if line["step"] <= event.step]
            self._clear()
            for line in lines:
                self._add(line)
        elif isinstance(event, Step):
            self._add(event.history_line())

    def _clear(self) -> None:
        self._compressor = zlib.compressobj(1)
        self._compressed = bytearray()

    def _add(self, line: dict[str, Any]) -> None:
        # json can write NaN and infinity, the losses of a diverging run.
        text = json.dumps(line) + "\n"
        self._compressed += self._compressor.compress(text.encode())

    def read(self) -> list[dict[str, Any]]:
        """Return the JSON line of each step."""
        # Flush a copy, so that more steps can be added later.
        end = self._compressor.copy().flush()
        text = zlib.decompress(self._compressed + end).decode()
        return [json.loads(line) for line in text.splitlines()]


@dataclass(slots=True)
class ParamsKeeper:
    """The place where a run stores its parameters for the result.

    Attributes:
        options: the options for the nodes.
        file: the file to which the run writes the parameters, or None.
        is_temporary: True if the file is removed after the run.
        elsewhere: True if the nodes run on other machines, where the file is.
        state: the names of the parameters that are state.
    """

    options: Options
    file: Path | None = None
    is_temporary: bool = False
    elsewhere: bool = False
    state: tuple[str, ...] = ()

    def attach(self, result: Result, history: StepHistory) -> None:
        """Add the history and the parameters of the run to its result."""
        params: Params | None = None
        file = self.file
        if file is not None and self.is_temporary:  # The file is about to be removed.
            params = _load(file)

        def read() -> Params:
            if params is not None:
                return params
            if file is not None:
                return _load(file)
            if self.elsewhere:
                raise PlacerError(
                    "the result has no parameters, because the nodes ran on "
                    "other machines",
                    hint="read the file of save_params on the machine of the first "
                    "node",
                )
            raise PlacerError(
                "the result has no parameters, because they are larger than"
                f" {MAX_RETURNED >> 20} MiB or 'return_params' is False",
                hint="use placer.launch(…, return_params=True) or save_params=FILE",
            )

        result.keep(history.read, read, self.state)


@contextmanager
def params_keeper(
    plan: Plan, options: Options, wanted: bool | None, *, elsewhere: bool = False
) -> Iterator[ParamsKeeper]:
    """Yield the place where the run must store its parameters.

    Args:
        plan: the plan.
        options: the checked options of the run.
        wanted: True to include the parameters in the result; None to include them if they
            are small.
        elsewhere: True if the nodes run on other machines.
    """
    state = tuple(p.name for p in plan.parameters if p.state)
    if elsewhere:
        yield ParamsKeeper(options, elsewhere=True)
        return
    if options.save_params is not None:
        yield ParamsKeeper(options, options.save_params, state=state)
        return
    if wanted is None:
        sizes = (math.prod(p.shape) * ITEM_BYTES[p.dtype] for p in plan.parameters)
        wanted = sum(sizes) <= MAX_RETURNED
    if not wanted:
        yield ParamsKeeper(options)
        return
    with tempfile.TemporaryDirectory(prefix="placer-") as folder:
        file = Path(folder) / "params.safetensors"
        yield ParamsKeeper(
            replace(options, save_params=file), file, is_temporary=True, state=state
        )


def _load(file: Path) -> Params:
    from placer.runtime.saving.parameter_files import load

    return load(file)
