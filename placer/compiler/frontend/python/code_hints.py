"""Hints for errors that the user's Python code raises."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection

from placer.compiler.frontend.op_names import op_hint
from placer.compiler.frontend.other_names import meant_key
from placer.errors import did_you_mean, missing_package_hint, nearest

_UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_LAYERS, _OPTIMIZER = "placer.layers", "placer.optimizer"


def hint_for(error: BaseException) -> str | None:
    """Return a hint for an exception of the user's code, or None."""
    if hint := missing_package_hint(error):
        return hint
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        if error.obj is sys.modules.get(_LAYERS):
            return op_hint(error.name, vars(error.obj)["__all__"])
        near = nearest(error.name, dir(error.obj))
        return f"did you mean '{near}'?" if near else None
    if not isinstance(error, TypeError):
        return None
    if "placer.compiler.frontend.python.variable" in str(error):
        return (
            "a value of the program has no numbers yet: use an op of placer.layers,"
            " or call a JAX function with placer.trace(fn, ...)"
        )
    if (match := _UNEXPECTED.match(str(error))) is not None:
        valid = _parameters(match[1])
        meant = meant_key(match[2], valid)
        return f"did you mean '{meant}'?" if meant else did_you_mean(match[2], valid)
    return None


def _parameters(function: str) -> Collection[str]:
    """Return the parameters of an op or an optimizer; empty for another function."""
    name = function.partition(".")[0]
    for module in (_LAYERS, _OPTIMIZER):
        found = getattr(sys.modules.get(module), name, None)
        if callable(found):
            return inspect.signature(found).parameters.keys()
    return ()
