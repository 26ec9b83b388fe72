"""Loads the functions of a spec's folder, and describes the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable
from traceback import extract_tb
from typing import Any

from placer.errors import PlacerError, did_you_mean
from placer.plan.modules import Modules, being_traced


def load_function(
    text: str, modules: Modules, loaded: dict[str, Any]
) -> Callable[..., Any]:
    """Return the function `MODULE:NAME` of the spec's folder. `loaded` has the modules
    that were imported before. Raises PlacerError if the module has no such function."""
    module, _, name = text.partition(":")
    if module not in loaded:
        before = being_traced.set(module)
        try:
            loaded[module] = modules.load(module, module)
        finally:
            being_traced.reset(before)
    fn = getattr(loaded[module], name, None)
    if not callable(fn):
        names = [
            each for each, found in vars(loaded[module]).items() if callable(found)
        ]
        raise PlacerError(
            f"{module}.py has no function '{name}'", hint=did_you_mean(name, names)
        )
    return fn  # type: ignore[no-any-return]


def describe_raised(fn: str, error: BaseException, modules: Modules) -> str:
    """Return a message for an error that a user's function raised, with its line."""
    raised = f"{type(error).__name__}: {error}".strip()
    return f"{fn} raised {raised}{_deepest_line(error, modules)}"


def _deepest_line(error: BaseException, modules: Modules) -> str:
    """Return the innermost traceback line within the spec's modules."""
    folder = str(modules.folder.absolute())
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(folder)]
    if not own:
        return ""
    file = own[-1].filename.removeprefix(folder).lstrip("/")
    return f" ({file}:{own[-1].lineno})"
