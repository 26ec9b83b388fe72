"""What a `Result` has besides its fields: the history of the run, and its parameters."""

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
from placer.runtime.control.events import Event, Step
from placer.runtime.control.options import Options
from placer.runtime.control.result import Params, Result

MAX_RETURNED: Final = 256 << 20
"""The bytes of parameters up to which a result has them without being asked to."""


class StepHistory:
    """The steps of a run: lines of JSON, compressed, since there may be millions."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(1)
        self._compressed = bytearray()

    def add(self, event: Event) -> None:
        """Add the event if it is a step."""
        if isinstance(event, Step):
            # json writes NaN and infinity, which a diverging loss has.
            line = json.dumps(event.history_line()) + "\n"
            self._compressed += self._compressor.compress(line.encode())

    def read(self) -> list[dict[str, Any]]:
        """Return the line of each step."""
        # A copy is flushed, so that more steps can be added.
        end = self._compressor.copy().flush()
        text = zlib.decompress(self._compressed + end).decode()
        return [json.loads(line) for line in text.splitlines()]


@dataclass(slots=True)
class ParamsKeeper:
    """Where a run leaves its parameters for the result.

    Attributes:
        options: the options with which to run the nodes.
        file: the file that the run writes them to, None if it does not.
        is_temporary: whether the file is removed after the run.
        elsewhere: whether the nodes run on other machines, where the file is.
    """

    options: Options
    file: Path | None = None
    is_temporary: bool = False
    elsewhere: bool = False

    def attach(self, result: Result, history: StepHistory) -> None:
        """Let the result have the history and the parameters of its run."""
        params: Params | None = None
        file = self.file
        if file is not None and self.is_temporary:  # it is removed next
            params = _load(file)

        def read() -> Params:
            if params is not None:
                return params
            if file is not None:
                return _load(file)
            if self.elsewhere:
                raise PlacerError(
                    "the result has no parameters, because the nodes ran on other"
                    " machines",
                    hint="read the file of save_params on the machine of the first node",
                )
            raise PlacerError(
                "the result has no parameters, because they are larger than"
                f" {MAX_RETURNED >> 20} MiB or 'return_params' is False",
                hint="use placer.launch(…, return_params=True) or save_params=FILE",
            )

        result.keep(history.read, read)


@contextmanager
def params_keeper(
    plan: Plan, options: Options, wanted: bool | None, *, elsewhere: bool = False
) -> Iterator[ParamsKeeper]:
    """Yield where the run is to leave its parameters.

    Args:
        plan: the plan.
        options: the options of the run, checked.
        wanted: whether the result is to have them; None if they are not large.
        elsewhere: whether the nodes run on other machines.
    """
    if elsewhere:
        yield ParamsKeeper(options, elsewhere=True)
        return
    if options.save_params is not None:
        yield ParamsKeeper(options, options.save_params)
        return
    if wanted is None:
        sizes = (math.prod(p.shape) * ITEM_BYTES[p.dtype] for p in plan.parameters)
        wanted = sum(sizes) <= MAX_RETURNED
    if not wanted:
        yield ParamsKeeper(options)
        return
    with tempfile.TemporaryDirectory(prefix="placer-") as folder:
        file = Path(folder) / "params.safetensors"
        yield ParamsKeeper(replace(options, save_params=file), file, is_temporary=True)


def _load(file: Path) -> Params:
    from placer.runtime.saving.parameter_files import load

    return load(file)
