"""The one error family. Every error can point into a file and carries one hint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one line of a text: where an error points.

    `line` and `column` count from 1; `text` is the whole source line.
    """

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def caret(self) -> str:
        """The source line with a caret under the span, ready to print."""
        number = str(self.line)
        gutter = " " * len(number)
        pad = "".join("\t" if c == "\t" else " " for c in self.text[: self.column - 1])
        carets = "^" * max(1, min(self.length, len(self.text) - self.column + 1))
        return f"  {number} | {self.text}\n  {gutter} | {pad}{carets}"


class PlacerError(Exception):
    """A mistake a person can mend.

    `message` says what is wrong, `span` where, `hint` what to do about it.
    `exit_status` is what the command line ends with: 2 for a user's mistake, 1 for a
    failure at run time.
    """

    exit_status = 2

    def __init__(
        self, message: str, *, span: Span | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.span}: {self.message}" if self.span else self.message]
        if self.span and self.span.text:
            lines.append(self.span.caret())
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class PlaceError(PlacerError):
    """A place string that cannot be read, or that the cluster does not have."""


class SpecError(PlacerError):
    """A spec that cannot be compiled."""


class SpecErrors(SpecError):  # noqa: N818 - several errors, not one
    """Several independent mistakes of one spec, told together in the file's order."""

    def __init__(self, errors: Iterable[PlacerError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class OpError(PlacerError):
    """An op that does not fit its operands or attributes.

    `operand` or `attr` names the culprit, so that a front end can point at it.
    """

    def __init__(
        self,
        message: str,
        *,
        operand: int | None = None,
        attr: str | None = None,
        span: Span | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, span=span, hint=hint)
        self.operand = operand
        self.attr = attr


class GraphError(PlacerError):
    """A graph that breaks a rule of the verifier, or graph text that cannot be read."""


class DataError(PlacerError):
    """A source of rows, or a file of parameters, that cannot be read or does not fit."""


class BuildError(PlacerError):
    """A build folder that is missing, edited, or of another version."""


class RunError(PlacerError):
    """A failure while nodes run. The message is the root cause: which node, what."""

    exit_status = 1


class RunWarning(RuntimeWarning):
    """A node failed when the run already had its result."""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name closest to `name`, or None when nothing is close."""
    from difflib import get_close_matches

    names = sorted(valid)
    same = [each for each in names if each.casefold() == name.casefold()]
    found = same or get_close_matches(name, names, n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """A hint for a misspelt name: the nearest valid one, else all of a few."""
    names = sorted(valid)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean '{close}'?"
    return f"one of: {', '.join(names)}" if 0 < len(names) <= FEW else None


def missing_package(error: BaseException) -> str | None:
    """The hint for a package that a user's module imports and that is not installed."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    if _is_installed(package):
        return None  # what is missing is a module within it
    if package in EXTRAS:
        return f"pip install 'placer[{package}]'"
    if package in _PIP:
        return f"pip install {_PIP[package]}"
    return f"pip install {package}; a module of your own has to be beside the spec"


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # of a finder; of a module that is half loaded
        return False


EXTRAS = ("flax", "equinox")
"""Packages that a model may be written with: extras of placer's own package."""

_PIP = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages that are installed by another name than they are imported by."""

FEW = 40
"""Beyond it a list of names is no hint."""
