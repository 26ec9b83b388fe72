"""Finds the first op whose result is not finite, for `--debug-nans`.

Training steps run op by op, and each result is checked. NaN ends the run. Infinity may be
intended, for example in a mask. So the first op that returns infinity is only remembered. It
is reported if NaN follows in the same step, or if the loss is infinite.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from placer.runtime.control.error_lines import describe_line

Record = Callable[[Mapping[str, Any], int], None]


class NanCheck:
    """Checks the training steps of one node.

    Args:
        folder: the build folder.
        program: the path of the node program in the build folder.
        minimize: the name of the minimized loss.
    """

    def __init__(self, folder: Path, program: str, minimize: str) -> None:
        self._folder, self._program = folder, program
        self._minimize = minimize
        self._first_infinite = ""  # text about the first op that returned infinity
        self._active = False

    @contextmanager
    def checked_step(self) -> Iterator[None]:
        """Run a training step op by op in this thread, and check every result."""
        import jax

        from placer.ops.function import check_results

        self._first_infinite, self._active = "", True
        with jax.disable_jit(), check_results(self):
            yield
        self._active = False

    def __call__(
        self, kind: str, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Check the results of an op. Raises FloatingPointError for NaN."""
        nan, infinite, size = map(
            sum, zip(*map(_count_non_finite, results), strict=True)
        )
        if nan:
            message = f"{kind} gives nan in {nan} of {size} values"
            non_finite = [
                i for i, x in enumerate(operands, 1) if any(_count_non_finite(x)[:2])
            ]
            if non_finite:
                listed = " and ".join(map(str, non_finite))
                message += f"; its operand {listed} is already not finite"
            raise FloatingPointError(message + self._first_infinite)
        if infinite and not self._first_infinite:
            self._first_infinite = (
                f"\n  first in this step: {kind} gives inf in {infinite} of {size} values"
                f"{self._program_line()}"
            )

    def checking_loss(self, record: Record) -> Record:
        """Wrap `record` so that a loss that is not finite raises FloatingPointError."""

        def checked_record(values: Mapping[str, Any], rows: int) -> None:
            loss = values.get(self._minimize)
            if self._active and loss is not None and not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss is {float(loss)}{self._first_infinite}"
                )
            record(values, rows)

        return checked_record

    def _program_line(self) -> str:
        program = str((self._folder / self._program).absolute())
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename != program:
            frame = frame.f_back
        if frame is None:
            return ""
        return f" {describe_line(self._folder, self._program, frame.f_lineno)}"


def _count_non_finite(array: Any) -> tuple[int, int, int]:
    """Return the number of NaNs, of infinities and of all values."""
    import jax.numpy as jnp

    dtype = getattr(array, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return 0, 0, 0
    return int(jnp.isnan(array).sum()), int(jnp.isinf(array).sum()), array.size
