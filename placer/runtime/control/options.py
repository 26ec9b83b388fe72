"""Declares the options of a run.

Each option is one field of `Options`. Four things are derived from the fields:

- the options of `placer launch` and `placer run` (`placer.command.options`),
- the keyword arguments of `placer.launch`,
- the checks of the values,
- the command lines of node processes (`placer.launcher.node_command`).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar

from placer.channel.transport import CHOICES
from placer.errors import PlacerError, did_you_mean
from placer.plan.settings.evaluation_and_stopping import DEFAULT_KEEP, Interval
from placer.plan.settings.evaluation_and_stopping import FORM as INTERVAL_FORM
from placer.runtime.control.timeline_window import DEFAULT_STEPS, FORM, parse_window

MAX_WAIT = 1e9
"""The largest timeout in seconds, about thirty years. Every clock can represent it."""

_OTHER_FORMATS = (".npz", ".npy", ".pt", ".pth", ".h5", ".keras", ".onnx", ".pkl")

Function = TypeVar("Function", bound=Callable[..., Any])


Agreement = Literal["value", "given", "control", "own"]
"""How far the nodes of a run must agree on an option:

- `value`: every node must have the same value.
- `given`: every node or no node must set the option. The paths may differ.
- `control`: only the control node uses the option. If any node sets it, the control node
  must set it.
- `own`: nodes may have different values.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: the keyword argument, such as `save_params`.
        default: the default value: False for a flag, None if the option has no default.
        text: the text for `--help`.
        agreement: how far the nodes of a run must agree. The handshake checks this.
        group: the heading above the option in `--help`.
        metavar: the placeholder for the value in `--help`, if the type is not enough.
        low: the lowest valid whole number.
        high: the highest valid whole number.
        seconds: whether the value is a time in seconds.
        choices: the valid words.
        file: the kind of path: a file or folder to read, a file to write, or a folder.
        parse: a function that parses the value. It raises PlacerError for an invalid value.
        between_processes: whether the option concerns several node processes. Such an
            option has no effect on threads or on a single process.
        of_stream: whether the option concerns a stream of files.
    """

    name: str
    default: Any
    text: str
    agreement: Agreement
    group: str
    metavar: str | None = None
    low: int | None = None
    high: int | None = None
    seconds: bool = False
    choices: tuple[str, ...] = ()
    file: Literal["read", "written", "folder"] | None = None
    parse: Callable[[Any], object] | None = None
    between_processes: bool = False
    of_stream: bool = False

    @property
    def flag(self) -> str:
        """The option on a command line, such as `--save-params`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def _expected(self) -> tuple[str, Any]:
        """The noun for a value in messages, and the valid Python types."""
        if self.default is False:
            return "True or False", bool
        if self.file:
            return "a path", (str, os.PathLike)
        if self.parse is not None:
            return "a text or a number", (str, Real)
        if self.low is not None:
            return "a whole number", Integral
        return ("a number of seconds", Real) if self.seconds else ("a text", str)

    def check(self, value: Any) -> None:
        """Raise PlacerError if `value` is not valid for this option."""
        why = None
        expected, types = self._expected
        if not isinstance(value, types) or (
            isinstance(value, bool) and types is not bool
        ):
            why = f"must be {expected}, not {value!r}"
        elif self.low is not None and value < self.low:
            why = f"must be at least {self.low}, not {value}"
        elif self.high is not None and value > self.high:
            why = f"must be at most {self.high}, not {value}"
        elif self.seconds and not 0 < value <= MAX_WAIT:
            why = f"must be above 0 and at most {MAX_WAIT:g} seconds, not {value}"
        if why is not None:
            raise PlacerError(f"'{self.name}' {why}")
        if self.parse is not None:
            self.parse(value)
        if self.choices and value not in self.choices:
            raise PlacerError(
                f"'{value}' is not a {self.name}",
                hint=did_you_mean(str(value), self.choices),
            )


def _option(
    default: Any, group: str, agreement: Agreement, text: str, **facts: Any
) -> Any:
    metadata = {"text": text, "group": group, "agreement": agreement, **facts}
    return field(default=default, metadata=metadata)


_RUN, _CHECKPOINTS = "Run", "Checkpoints"
_CONNECTIONS, _LIMITS = "Machines and connections", "Time limits"


def _check_safetensors(path: str | Path) -> None:
    """Raise PlacerError if the suffix of `path` belongs to a format other than safetensors."""
    suffix = Path(path).suffix
    if suffix.casefold() in _OTHER_FORMATS:
        raise PlacerError(
            f"'save_params' (--save-params) writes safetensors, not '{suffix}'",
            hint=f"use the name {Path(path).with_suffix('.safetensors').name}",
        )


def _check_history(path: str | Path) -> None:
    """Raise PlacerError if the suffix of `path` is that of CSV files."""
    if Path(path).suffix.casefold() == ".csv":
        raise PlacerError(
            "'history' (--history) writes JSON lines, not CSV",
            hint=f"use the name {Path(path).with_suffix('.jsonl').name}",
        )


def _check_until(name: object) -> None:
    """Raise PlacerError unless `name` is a text that is not empty."""
    if not isinstance(name, str) or not name.strip():
        raise PlacerError(
            f"'until' (--until) must be now, or the name of a file or folder, not {name!r}"
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run that are not part of the build.

    `placer run --help` explains each option.

    Raises PlacerError if the value of an option is not valid.

    Example:
        placer.run("build", "worker:0", options=placer.Options(steps=100))
    """

    steps: int | None = _option(
        None,
        _RUN,
        "value",
        "Train for exactly N steps and ignore the number of epochs in the spec.",
        metavar="N",
        low=1,
    )
    until: str | None = _option(
        None,
        _RUN,
        "value",
        "With a stream: stop instead of waiting for files. `now` trains the files that exist "
        "at the start; NAME trains up to the pass with this file or folder.",
        metavar="now|NAME",
        parse=_check_until,
        of_stream=True,
    )
    passes: int | None = _option(
        None,
        _RUN,
        "value",
        "With a stream: stop after N passes of this command.",
        metavar="N",
        low=1,
        of_stream=True,
    )
    history: Path | None = _option(
        None,
        _RUN,
        "control",
        "Write the metrics of each step to FILE, one JSON object per line.",
        file="written",
        parse=_check_history,
    )
    save_params: Path | None = _option(
        None,
        _RUN,
        "given",
        "At the end, write all parameters to FILE in the safetensors format.",
        file="written",
        parse=_check_safetensors,
    )
    init_params: Path | None = _option(
        None,
        _RUN,
        "given",
        "Start from the parameters in PATH: a safetensors file, a checkpoint, or a "
        "folder of checkpoints (uses the newest intact one).",
        metavar="PATH",
        file="read",
    )
    checkpoint: Path | None = _option(
        None,
        _CHECKPOINTS,
        "given",
        "Save checkpoints in DIR: at the interval of --checkpoint-every, on Ctrl-C or "
        "SIGTERM, and at the end.",
        metavar="DIR",
        file="folder",
    )
    checkpoint_every: str | None = _option(
        None,
        _CHECKPOINTS,
        "value",
        f"How often to save a checkpoint, such as {INTERVAL_FORM}. Default: epoch, or "
        "auto with --restarts. `auto` is a time of at least 10 s, so long that checkpoints "
        "take little of it.",
        metavar="INTERVAL",
        parse=Interval.parse,
    )
    checkpoint_keep: int | None = _option(
        None,
        _CHECKPOINTS,
        "control",
        f"Keep the newest N checkpoints and the best one. Default: {DEFAULT_KEEP}.",
        metavar="N",
        low=1,
    )
    publish: Path | None = _option(
        None,
        _CHECKPOINTS,
        "given",
        "Publish parameters and changed rows of sparse tables in DIR for serving: after each "
        "epoch or pass, or as train.publish says, and at the end.",
        metavar="DIR",
        file="folder",
    )
    resume: Path | None = _option(
        None,
        _CHECKPOINTS,
        "given",
        "Continue from a checkpoint, or from the newest intact checkpoint in a folder. "
        "If DIR is the folder of --checkpoint and is empty, start a new run.",
        metavar="DIR",
        file="folder",
    )
    new_rows: bool = _option(
        False,
        _CHECKPOINTS,
        "value",
        "With --resume: allow other rows than those of the checkpoint. They are the next "
        "epoch, and train.epochs counts from there. If the rows are the same, the run goes on "
        "in them.",
    )
    skip_pass: bool = _option(
        False,
        _CHECKPOINTS,
        "value",
        "With --resume and a stream: leave out the rest of the checkpoint's pass, whose files "
        "have changed, and go on with the next pass.",
        of_stream=True,
    )
    partial: bool = _option(
        False,
        _CHECKPOINTS,
        "value",
        "With --resume: initialize parameters and optimizer states that are missing "
        "from the checkpoint, instead of failing.",
    )
    shrink: bool = _option(
        False,
        _CHECKPOINTS,
        "value",
        "With --resume: apply the `forget` rules of all sparse tables once, before the "
        "first step.",
    )
    restarts: int = _option(
        0,
        _CHECKPOINTS,
        "value",
        "Go on after a failure: start the failed process again, and continue all nodes "
        "from the last checkpoint. The run ends when N + 1 attempts in a row began from the "
        "same step. Default: 0, the first failure ends the run.",
        metavar="N",
        low=0,
        high=1_000_000,
    )
    grace: float = _option(
        30.0,
        _LIMITS,
        "own",
        "After Ctrl-C or SIGTERM, wait this long for all nodes to reach the same step, "
        "then save.",
        seconds=True,
    )
    base_port: int | None = _option(
        None,
        _CONNECTIONS,
        "own",
        "Port of the first node; each further node uses the next port. Replaces the base "
        "port of a hosts file.",
        metavar="PORT",
        low=1,
        high=65535,
        between_processes=True,
    )
    join_timeout: float = _option(
        600.0,
        _LIMITS,
        "own",
        "Fail if the other nodes do not start within this time.",
        seconds=True,
        between_processes=True,
    )
    deadline: float = _option(
        600.0,
        _LIMITS,
        "own",
        "Fail if a live node does not send an expected message within this time.",
        seconds=True,
    )
    lost_after: float = _option(
        60.0,
        _LIMITS,
        "own",
        "End the run if a node is silent for this long. After 8 s of silence, the run "
        "reports the name of the node.",
        seconds=True,
        between_processes=True,
    )
    transport: str = _option(
        "auto",
        _CONNECTIONS,
        "own",
        "Transport between nodes. `auto` uses PLACER_TRANSPORT if set, otherwise shared "
        "memory on one machine and TCP between machines.",
        choices=CHOICES,
        between_processes=True,
    )
    key: Path | None = _option(
        None,
        _CONNECTIONS,
        "own",
        "File with the secret key for connections between machines; create it with "
        "`placer key new`. Default: the path in PLACER_KEY_FILE.",
        file="read",
        between_processes=True,
    )
    insecure_network: bool = _option(
        False,
        _CONNECTIONS,
        "own",
        "Do not encrypt connections between machines. Use this only on a network that "
        "encrypts traffic. Nodes still authenticate with the key when they connect.",
        between_processes=True,
    )
    record_order: Path | None = _option(
        None,
        _RUN,
        "given",
        "Record the order of asynchronous messages in DIR, one file for each node.",
        metavar="DIR",
        file="folder",
    )
    replay_order: Path | None = _option(
        None,
        _RUN,
        "given",
        "Repeat a run bit for bit, with the message order that --record-order recorded "
        "in DIR.",
        metavar="DIR",
        file="read",
    )
    trace: Path | None = _option(
        None,
        _RUN,
        "given",
        "Write a timeline of all nodes to FILE, as a trace for `placer report` and "
        "Perfetto.",
        file="written",
    )
    trace_steps: str | None = _option(
        None,
        _RUN,
        "value",
        "With --trace: the steps to trace, such as 10:30. Default: the first "
        f"{DEFAULT_STEPS} steps of the run.",
        metavar=FORM,
        parse=parse_window,
    )
    emulate: bool = _option(
        False, _RUN, "value", "Run everything on CPU devices instead of accelerators."
    )
    debug_nans: bool = _option(
        False,
        _RUN,
        "value",
        "Run op by op and report the first op that produces NaN (slow).",
    )

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = getattr(self, option.name)
            if value is not None:
                option.check(value)
                if option.file:
                    object.__setattr__(self, option.name, Path(value))


OPTIONS = tuple(Option(f.name, f.default, **f.metadata) for f in fields(Options))
"""The declarations of all fields of `Options`."""


OF_PREDICTION = ("transport", "emulate", "deadline", "join_timeout", "base_port")
"""The options of a training run that a prediction also accepts."""


def takes_options(function: Function, names: Sequence[str] | None = None) -> Function:
    """Show options, by default all, as keyword arguments of a function with `**options`."""
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()
    assert rest.kind is inspect.Parameter.VAR_KEYWORD
    options = inspect.signature(Options).parameters
    taken = [p for n, p in options.items() if names is None or n in names]
    keywords = [each.replace(kind=each.KEYWORD_ONLY) for each in taken]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *keywords]
    )
    return function
