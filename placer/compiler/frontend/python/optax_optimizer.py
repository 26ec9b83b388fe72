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
            If it takes other arguments than `learning_rate`: a pair of the function and a
            dict from their names to plain data, `(net.make_optimizer, {"b1": 0.9})`. The
            data are numbers, strings, None, lists, and dicts with strings as keys; tuples
            become lists.
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

    fn: Function | tuple[Function, dict[str, Any]]
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
        made, config = self.fn, None
        if isinstance(made, tuple) and len(made) == 2 and type(made[1]) is dict:
            made, config = made
        settings["fn"] = _path(made, program)
        if config:
            settings["with"] = config
        if self.eval_params is not None:
            settings["eval_params"] = _path(self.eval_params, program)
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        program.minimize(loss, OPTAX, {**settings, **self.changed_settings()})


def _path(fn: Any, program: Program) -> str:
    if isinstance(fn, str):
        return fn
    try:
        return function_path(fn, program, "optimizer.Optax")
    except SpecError as error:
        raise call_error(error.message, error.hint) from error
