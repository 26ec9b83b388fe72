"""Looking for the first op whose result is not finite: `--debug-nans`.

The segments of a training step run op by op, and each result is looked at. NaN ends the
run there. Infinity may be what a model means, as a mask is: the first op that gives it is
remembered, and named when NaN comes of it or the loss is infinite.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from placer.runtime.program.error_lines import at_line

Watch = Callable[[Mapping[str, Any], int], None]


class NanCheck:
    """Checks the training steps of one node, which runs `program` of a build folder."""

    def __init__(self, folder: Path, program: str, minimize: str) -> None:
        self._folder, self._program = folder, program
        self._minimize = minimize
        self._infinite = ""
        self._active = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step op by op in this thread, and check it."""
        import jax

        from placer.ops.function import checked

        self._infinite, self._active = "", True
        with jax.disable_jit(), checked(self):
            yield
        self._active = False

    def __call__(
        self, kind: str, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Look at what an op gives. FloatingPointError for NaN."""
        nan, infinite, size = map(sum, zip(*map(_counted, results), strict=True))
        if nan:
            message = f"{kind} gives nan in {nan} of {size} values"
            before = [i for i, x in enumerate(operands, 1) if any(_counted(x)[:2])]
            if before:
                listed = " and ".join(map(str, before))
                message += f"; its operand {listed} is not finite already"
            raise FloatingPointError(message + self._since())
        if infinite and not self._infinite:
            where = self._where()
            self._infinite = f"{kind} gives inf in {infinite} of {size} values{where}"

    def watching(self, record: Watch) -> Watch:
        """The same `record`, but FloatingPointError for a loss that is not finite."""

        def watched(values: Mapping[str, Any], rows: int) -> None:
            loss = values.get(self._minimize)
            if self._active and loss is not None and not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {float(loss)}{self._since()}")
            record(values, rows)

        return watched

    def _since(self) -> str:
        return f"\n  first in this step: {self._infinite}" if self._infinite else ""

    def _where(self) -> str:
        program = str((self._folder / self._program).absolute())
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename != program:
            frame = frame.f_back
        if frame is None:
            return ""
        return f" {at_line(self._folder, self._program, frame.f_lineno)}"


def _counted(array: Any) -> tuple[int, int, int]:
    """How many values are NaN, how many infinite, and how many there are."""
    import jax.numpy as jnp

    dtype = getattr(array, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return 0, 0, 0
    return int(jnp.isnan(array).sum()), int(jnp.isinf(array).sum()), array.size
