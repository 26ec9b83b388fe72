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
    try:
        hash(fn)  # traces are cached
    except TypeError as error:
        raise PlacerError(
            f"'{name}' of {module}.py is a {type(fn).__name__}, which has no hash",
            hint=f"write a function that calls it, with def, or give {type(fn).__name__}"
            " a method __hash__",
        ) from error
    return fn  # type: ignore[no-any-return]


def describe_raised(fn: str, error: BaseException, modules: Modules) -> str:
    """Return a message for an error that a user's function raised, with its line."""
    raised = f"{type(error).__name__}: {error}".strip()
    return f"{fn} raised {raised}{deepest_line(error, modules)}"


def deepest_line(error: BaseException, modules: Modules) -> str:
    """Return the innermost traceback line within the spec's modules."""
    folder = str(modules.folder.absolute())
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(folder)]
    if not own:
        return ""
    file = own[-1].filename.removeprefix(folder).lstrip("/")
    return f" ({file}:{own[-1].lineno})"
