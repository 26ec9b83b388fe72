"""The exceptions of placer. Each one can have a position in a file, and a hint."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Span(Struct, frozen=True):
    """A range of characters in one line of a file: the position of an error.

    `line` and `column` count from 1; `length` is in characters; `text` is the whole
    source line, without its line break.
    """

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def caret(self) -> str:
        """Return the source line with carets under the span, ready to print."""
        number = str(self.line)
        gutter = " " * len(number)
        pad = "".join("\t" if c == "\t" else " " for c in self.text[: self.column - 1])
        carets = "^" * max(1, min(self.length, len(self.text) - self.column + 1))
        return f"  {number} | {self.text}\n  {gutter} | {pad}{carets}"


class PlacerError(Exception):
    """Base class of the errors that a user can correct.

    Args:
        message: What is wrong.
        span: Where it is wrong, if that is in a file.
        hint: What to do about it.

    `exit_status` is the exit status of the command line: 2 for a mistake of the user,
    1 for a failure at run time.

    Example:
        >>> print(PlacerError("unknown op 'fx'", hint="did you mean 'fc'?"))
        unknown op 'fx'
          hint: did you mean 'fc'?
    """

    exit_status = 2

    def __init__(
        self, message: str, *, span: Span | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the message, without the calls inside placer."""
        return [f"{type(self).__name__}: {self}"]

    def __str__(self) -> str:
        lines = [f"{self.span}: {self.message}" if self.span else self.message]
        if self.span and self.span.text:
            lines.append(self.span.caret())
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class PlaceError(PlacerError):
    """A place string that cannot be parsed, or that does not exist in the cluster."""


class SpecError(PlacerError):
    """A spec that cannot be compiled."""


class SpecErrors(SpecError):  # noqa: N818 - several errors, not one
    """Several independent errors of one spec, in the order of the file.

    `errors` holds them one by one.
    """

    def __init__(self, errors: Iterable[PlacerError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class OpError(PlacerError):
    """An op that does not fit its operands or attributes.

    `operand` (an index) or `attr` (a name) is the one at fault, so that a front end can
    point at it; `keys` lead to the part of the attribute that is wrong. `kind` is the kind of op that is the subject of the message, if any.
    `conversion` is the index of an operand whose dtype is wrong, and the dtype to convert
    it to; `float` is that of the model.
    """

    def __init__(
        self,
        message: str,
        *,
        operand: int | None = None,
        attr: str | None = None,
        keys: tuple[str | int, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.operand = operand
        self.attr = attr
        self.keys = keys
        self.kind: str | None = None
        self.conversion: tuple[int, str] | None = None

    def of(self, kind: str) -> OpError:
        """Begin the message, a predicate such as `needs rows`, with a kind of op."""
        self.kind, self.message = kind, f"{kind} {self.message}"
        return self


class GraphError(PlacerError):
    """A graph that the verifier rejects, or graph text that cannot be parsed."""


class DataError(PlacerError):
    """A source of rows or a file of parameters that cannot be read or does not fit."""


class CheckpointError(DataError):
    """A checkpoint that cannot be read, is damaged, or is of another model."""


class BuildError(PlacerError):
    """A build folder that is missing, edited, or from another version of placer."""


class RunError(PlacerError):
    """A failure of a run. The message names the root cause: the node and its error."""

    exit_status = 1


class RunWarning(RuntimeWarning):
    """A node failed after the run had produced its result."""


class SpecWarning(RuntimeWarning):
    """A spec that can be compiled, and probably does not compute what is meant."""


class CheckpointWarning(RuntimeWarning):
    """A checkpoint of a folder cannot be read, and an earlier one was taken."""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name closest to `name`, or None if none is close.

    Names that differ in case only come first, then those that it abbreviates, such as
    `lr` for `learning_rate`, then those of `difflib` with a ratio of at least 0.6.
    """
    from difflib import get_close_matches

    names = sorted(valid)
    same = [each for each in names if each.casefold() == name.casefold()]
    meant = [each for each in names if _initials(each) == name.casefold()]
    closest = same or meant or get_close_matches(name, names, n=1, cutoff=0.6)
    return closest[0] if closest else None


def _initials(name: str) -> str | None:
    """Return the first letters of the words of a name; None for a single word."""
    words = name.casefold().split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else None


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """Return a hint for a misspelt name: the closest valid name, else the list of valid
    names if there are at most `MAX_LISTED_NAMES`, else None."""
    names = sorted(valid)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean '{close}'?"
    return f"one of: {', '.join(names)}" if 0 < len(names) <= MAX_LISTED_NAMES else None


def install_extra(extra: str) -> str:
    """Return how to install placer with an extra."""
    return f"pip install '.[{extra}]' in a clone of placer"


def missing_package_hint(error: BaseException) -> str | None:
    """Return a hint for an ImportError of a user's module: how to install the package.

    None if `error` is not a ModuleNotFoundError, or if the package is installed and
    lacks a submodule.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    if _is_installed(package):
        return None  # the package lacks a submodule
    if package in EXTRAS:
        return install_extra(package)
    if package in _PIP:
        return f"pip install {_PIP[package]}"
    return (
        f"pip install {package}; a module of your own must be in the folder of the spec"
    )


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    # A finder raises ImportError; a module that is partly loaded, ValueError.
    except (ImportError, ValueError):
        return False


EXTRAS = ("flax", "equinox")
"""Packages that a model may use, which are extras of the package `placer`."""

_PIP = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""The distributions of packages whose import name differs, by import name."""

MAX_LISTED_NAMES = 40
"""The most names that a hint lists."""
