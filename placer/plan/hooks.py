"""The hooks of node programs: the functions that a program defines for the runtime."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

HookName: TypeAlias = Literal["step", "evaluate", "predict"]
"""The hook of a graph: a training step, an evaluation, a prediction."""

SERVE = "serve"
"""The hook that handles the messages of workers which do not go in lockstep."""

HOOKS: tuple[str, ...] = (*get_args(HookName), SERVE)
"""All hooks. The runtime finds each in a program by its name, and nothing else in a
program has one of these names."""
