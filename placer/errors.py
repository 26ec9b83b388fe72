"""The exceptions of placer, which can have a position in a file and a hint."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Span(Struct, frozen=True):
    """The position of an error: a range of characters in one line of a file.

    Attributes:
        file: the path of the file.
        line: the number of the line, from 1.
        column: the first character, from 1.
        length: the number of characters.
        text: the whole source line, without its line break.
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
    """Base class of errors that the user can correct.

    Args:
        message: the problem.
        span: the position of the problem, if it is in a file.
        hint: advice for the user.

    Attributes:
        exit_status: the exit status of the command line: 2 for a user error, 1 for a
            failure at run time.

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
        """Return the text for IPython: the message, without the calls inside placer."""
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
    """Several independent errors of one spec; `errors` lists them in the order of the
    file."""

    def __init__(self, errors: Iterable[PlacerError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class OpError(PlacerError):
    """An op that does not fit its operands or attributes.

    Attributes:
        operand: the index of the wrong operand, or None.
        attr: the name of the wrong attribute, or None.
        keys: the path to the wrong part of the attribute.
        kind: the kind of op that the message begins with, if any.
        conversion: the index of an operand with a wrong dtype, and the required dtype;
            `float` stands for the dtype of the model.
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
        """Put a kind of op before the message, which is a predicate such as `needs rows`."""
        self.kind, self.message = kind, f"{kind} {self.message}"
        return self


class GraphError(PlacerError):
    """The verifier rejects a graph, or the text of a graph cannot be parsed."""


class DataError(PlacerError):
    """A data source or a file of parameters cannot be read, or does not fit the model."""


class CheckpointError(DataError):
    """A checkpoint cannot be read, is damaged, or belongs to another model."""


class BuildError(PlacerError):
    """A build folder is missing, was edited, or comes from another version of placer."""


class RunError(PlacerError):
    """A failure of a run. The message names the root cause: the node and its error."""

    exit_status = 1


class StreamError(RunError):
    """The function of a stream has raised. Its source may come back, so a run may try again."""


class RunWarning(RuntimeWarning):
    """A run has its result, but a node failed later or a file of the run is incomplete."""


class SpecWarning(RuntimeWarning):
    """A spec can be compiled, but probably does not compute the intended result."""


class CheckpointWarning(RuntimeWarning):
    """A checkpoint in a folder cannot be read, so an earlier one is used."""


def nearest(name: str, valid: Iterable[str], ratio: float = 0.6) -> str | None:
    """Return the valid name closest to `name`, or None if none is close. The
    order is: a name that differs only in case, a name that `name` abbreviates (such as
    `learning_rate` for `lr`), a match of `difflib` with at least this ratio. For a
    name of up to 3 characters the ratio may be 0.5, if the first characters are equal.

    >>> nearest("h2", ["h1", "logits"])
    'h1'
    """
    from difflib import get_close_matches

    names = sorted(valid)
    same = [each for each in names if each.casefold() == name.casefold()]
    meant = [each for each in names if _initials(each) == name.casefold()]
    closest = same or meant or get_close_matches(name, names, n=1, cutoff=ratio)
    if not closest and len(name) <= MAX_SHORT_NAME:
        alike = [each for each in names if each[:1] == name[:1]]
        closest = get_close_matches(name, alike, n=1, cutoff=0.5)
    return closest[0] if closest else None


def _initials(name: str) -> str | None:
    """Return the first letters of the words of a name; None for a single word."""
    words = name.casefold().split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else None


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """Return a hint for an unknown name. The hint is the closest valid name, or else
    the list of valid names. It is None if there are more than `MAX_LISTED_NAMES`."""
    names = sorted(valid)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean '{close}'?"
    return f"one of: {', '.join(names)}" if 0 < len(names) <= MAX_LISTED_NAMES else None


def install_extra(extra: str) -> str:
    """Return the command that installs placer with an extra."""
    return f"pip install '.[{extra}]' in a clone of placer"


def missing_package_hint(error: BaseException) -> str | None:
    """Return a hint for an ImportError of a user's module: the command to install the
    package. Return None for other errors, and if the package is installed but lacks a
    submodule."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    if _is_installed(package):
        return None  # The package lacks a submodule.
    if package in _KERAS_BACKENDS and _is_raised_by_keras(error):
        return KERAS_HINT
    if package in EXTRAS:
        return install_extra(package)
    if package in _PIP:
        return f"pip install {_PIP[package]}"
    return f"pip install {package}; your own modules must be in the folder of the spec"


def _is_raised_by_keras(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("keras."):
            return True
        trace = trace.tb_next
    return False


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    # A finder raises ImportError; a partly loaded module raises ValueError.
    except (ImportError, ValueError):
        return False


EXTRAS = ("flax", "equinox", "haiku", "keras", "optax")
"""Packages that a model may use and that are extras of the package `placer`."""

KERAS_HINT = (
    "set the environment variable KERAS_BACKEND=jax, or in Python before"
    ' `import keras`: os.environ["KERAS_BACKEND"] = "jax"'
)
"""The hint for Keras with another backend than JAX."""
_KERAS_BACKENDS = ("tensorflow", "torch", "openvino")

_PIP = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""The distributions of packages with another import name, by import name."""

MAX_LISTED_NAMES = 40
"""The largest number of names in a hint."""

MAX_SHORT_NAME = 3
"""The largest length of a name for which half of the characters may differ."""
