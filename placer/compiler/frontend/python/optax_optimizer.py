"""`placer.optimizer.Optax`: trains with an optax optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from placer.compiler.frontend.python.program import Program, current_program
from placer.compiler.frontend.python.trace import function_path
from placer.compiler.frontend.python.training import OptimizerSettings, Rate
from placer.compiler.frontend.python.variable import Variable
from placer.errors import SpecError
from placer.plan.settings.training.optimizers import OPTAX
from placer.system.callsite import call_error

Function = str | Callable[..., Any]
"""A function of a file next to the program: the object, or `MODULE:FUNCTION`."""


@dataclass(frozen=True)
class Optax(OptimizerSettings):
    """An optax optimizer, which a function in a file returns.

    placer traces the optimizer on a dict from the names of its parameters to their
    arrays. Masks and labels see this dict. `Optimizer` documents the other settings.

    Args:
        fn: A function that returns an `optax.GradientTransformation`: a function at the
            top level of a file next to the program, or its name as `MODULE:FUNCTION`.
            It takes no arguments, or only `learning_rate`.
        learning_rate: A number, or a schedule (docs/reference/spec.md), if `fn` takes
            `learning_rate`. The function then receives the rate of the step.
        eval_params: A function `(state, params)` that returns the parameters for
            evaluations, predictions and exports, such as their running means. Without
            it, they use the trained parameters.

    Example:
        # optimizers.py
        def make(learning_rate):
            return optax.adamw(learning_rate, weight_decay=0.01)

        # the program
        optimizer.Optax("optimizers:make", learning_rate=0.001).minimize(loss)
    """

    fn: Function
    _: KW_ONLY
    learning_rate: Rate | None = None
    eval_params: Function | None = None

    def minimize(self, loss: Variable) -> None:
        """Train the program's parameters with this optimizer, to minimize the loss.

        The open guards place the parameters and the state of the optimizer.

        Args:
            loss: A scalar value of the current program.

        Raises:
            SpecError: At the caller's line, if the loss or a setting is wrong, or nodes
                cannot import a function.

        Example:
            with place_guard("/node:ps/cpu"):
                optimizer.Optax("optimizers:make").minimize(loss)
        """
        program = current_program()
        settings: dict[str, Any] = {}
        for key in ("fn", "eval_params"):
            if (fn := getattr(self, key)) is not None:
                settings[key] = fn if isinstance(fn, str) else _path(fn, program)
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        program.minimize(loss, OPTAX, {**settings, **self.changed_settings()})


def _path(fn: Any, program: Program) -> str:
    try:
        return function_path(fn, program, "optimizer.Optax")
    except SpecError as error:
        raise call_error(error.message, error.hint) from error
