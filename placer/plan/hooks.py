"""The hooks of node programs: functions that the runtime calls."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

HookName: TypeAlias = Literal["step", "evaluate", "predict"]
"""The hook of each graph: training step, evaluation, prediction."""

SERVE = "serve"
"""The hook that handles messages of asynchronous workers."""

HOOKS: tuple[str, ...] = (*get_args(HookName), SERVE)
"""All hooks. The runtime finds a hook by its name, so programs use these names for nothing
else."""
