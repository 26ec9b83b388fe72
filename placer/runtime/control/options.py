"""The options of a run: one field for each, with all that is known of it.

From these fields come the options of `placer launch` and `placer run`
(`placer.command.options`), the keyword arguments of `placer.launch`, the checks of both,
and what the launcher passes on to the processes of nodes (`placer.launcher.node_command`).
A new option is a field here, and the code that uses it.
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
"""The largest timeout, in seconds: about thirty years, which every clock can count."""

_OTHER_FORMATS = (".npz", ".npy", ".pt", ".pth", ".h5", ".keras", ".onnx", ".pkl")

Function = TypeVar("Function", bound=Callable[..., Any])


Agreement = Literal["value", "given", "control", "own"]
"""How far the nodes of a run must agree on an option:

- `value`: all nodes have the same value;
- `given`: all nodes have it, or none has; its path may differ between machines;
- `control`: only the control node uses it, so it must have it if another node has;
- `own`: each node may have its own, such as a limit of its waits.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option.

    Attributes:
        name: as a keyword argument, such as `save_params`.
        default: False for a flag, None if there is nothing to use instead.
        text: what the option does, for `--help`.
        agreement: how far the nodes of a run must agree on it, which the handshake
            checks.
        group: where `--help` lists it.
        metavar: what `--help` prints for the value, if its type does not say it.
        low: the lowest value of a whole number.
        high: the highest value of a whole number.
        seconds: whether the value is a time to wait.
        choices: the words from which the value is chosen.
        file: whether the value is a file or folder that the run reads, a file that it
            writes, or a folder.
        parse: reads the value; it raises PlacerError for one that is not valid.
        between_processes: whether it is about the processes of nodes, so that it has no
            effect on threads and on a single process.
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

    @property
    def flag(self) -> str:
        """The option on a command line, such as `--save-params`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def _expected(self) -> tuple[str, Any]:
        """What a value is, for messages, and its types."""
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
        """Raise PlacerError if the option cannot have this value."""
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
    """Raise PlacerError for a name that says that a file has another format."""
    suffix = Path(path).suffix
    if suffix.casefold() in _OTHER_FORMATS:
        raise PlacerError(
            f"'save_params' (--save-params) writes safetensors, not '{suffix}'",
            hint=f"name it {Path(path).with_suffix('.safetensors').name}",
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, besides what the build specifies.

    They are the options of `placer run`, whose `--help` explains them. Raises
    PlacerError for a value that an option cannot have.

    Example:
        placer.run("build", "worker:0", options=placer.Options(steps=100))
    """

    steps: int | None = _option(
        None,
        _RUN,
        "value",
        "Run exactly N steps instead of the epochs of the spec.",
        metavar="N",
        low=1,
    )
    history: Path | None = _option(
        None,
        _RUN,
        "control",
        "Write the metrics of each step to FILE, as JSON lines.",
        file="written",
    )
    save_params: Path | None = _option(
        None,
        _RUN,
        "given",
        "Write all parameters to FILE at the end, as safetensors.",
        file="written",
        parse=_check_safetensors,
    )
    init_params: Path | None = _option(
        None,
        _RUN,
        "given",
        "Start from the parameters of a safetensors file, of a checkpoint, or of the "
        "last good one in a folder of checkpoints.",
        metavar="PATH",
        file="read",
    )
    checkpoint: Path | None = _option(
        None,
        _CHECKPOINTS,
        "given",
        "Save checkpoints in DIR: at the end, after Ctrl-C or SIGTERM, and as often as "
        "--checkpoint-every specifies.",
        metavar="DIR",
        file="folder",
    )
    checkpoint_every: str | None = _option(
        None,
        _CHECKPOINTS,
        "value",
        "Save a checkpoint every N steps, or at another interval: "
        f"{INTERVAL_FORM}. By default epoch.",
        metavar="INTERVAL",
        parse=Interval.parse,
    )
    checkpoint_keep: int | None = _option(
        None,
        _CHECKPOINTS,
        "control",
        f"Keep the last N checkpoints, and the best one. By default {DEFAULT_KEEP}.",
        metavar="N",
        low=1,
    )
    resume: Path | None = _option(
        None,
        _CHECKPOINTS,
        "given",
        "Continue from a checkpoint, or from the last good one in a folder of "
        "checkpoints. The folder of --checkpoint may be empty: the run then starts.",
        metavar="DIR",
        file="folder",
    )
    partial: bool = _option(
        False,
        _CHECKPOINTS,
        "value",
        "With --resume: let parameters and optimizer states that the checkpoint does "
        "not have start from their initial values.",
    )
    shrink: bool = _option(
        False,
        _CHECKPOINTS,
        "value",
        "With --resume: before the first step, forget all keys of sparse tables that "
        "their `forget` says, in a sweep of all partitions at once.",
    )
    grace: float = _option(
        30.0,
        _LIMITS,
        "own",
        "The time that all nodes have to reach the same step after Ctrl-C or SIGTERM, "
        "to save there.",
        seconds=True,
    )
    base_port: int | None = _option(
        None,
        _CONNECTIONS,
        "own",
        "The port of the first node, instead of that in a file of hosts; the others use "
        "the ports after it.",
        metavar="PORT",
        low=1,
        high=65535,
        between_processes=True,
    )
    join_timeout: float = _option(
        600.0,
        _LIMITS,
        "own",
        "The longest that a node waits for the others to start.",
        seconds=True,
        between_processes=True,
    )
    deadline: float = _option(
        600.0,
        _LIMITS,
        "own",
        "The longest that a node waits for a message from a live peer.",
        seconds=True,
    )
    lost_after: float = _option(
        60.0,
        _LIMITS,
        "own",
        "The silence after which a node counts as lost, which ends the run. It is named "
        "after 8 s.",
        seconds=True,
        between_processes=True,
    )
    transport: str = _option(
        "auto",
        _CONNECTIONS,
        "own",
        "The transport between nodes: shared memory or TCP. `auto` is "
        "the value of PLACER_TRANSPORT, or else shared memory on one machine.",
        choices=CHOICES,
        between_processes=True,
    )
    key: Path | None = _option(
        None,
        _CONNECTIONS,
        "own",
        "The key of the run, as `placer key new` writes it: for connections between "
        "machines. By default PLACER_KEY_FILE names it.",
        file="read",
        between_processes=True,
    )
    insecure_network: bool = _option(
        False,
        _CONNECTIONS,
        "own",
        "Do not encrypt connections between machines, on a network that does so itself. "
        "Each connection is still authenticated with the key when it begins.",
        between_processes=True,
    )
    record_order: Path | None = _option(
        None,
        _RUN,
        "given",
        "Record the order of messages without lockstep in DIR, a file for each node.",
        metavar="DIR",
        file="folder",
    )
    replay_order: Path | None = _option(
        None,
        _RUN,
        "given",
        "Run in the order that --record-order has recorded in DIR: the same bits.",
        metavar="DIR",
        file="read",
    )
    trace: Path | None = _option(
        None,
        _RUN,
        "given",
        "Write what each node does when to FILE, as a trace for Perfetto: see "
        "docs/tracing.md.",
        file="written",
    )
    trace_steps: str | None = _option(
        None,
        _RUN,
        "value",
        "With --trace: the steps to trace, such as 10:30. By default the first "
        f"{DEFAULT_STEPS} of the run.",
        metavar=FORM,
        parse=parse_window,
    )
    emulate: bool = _option(
        False, _RUN, "value", "Use CPU devices in place of all accelerators."
    )
    debug_nans: bool = _option(
        False,
        _RUN,
        "value",
        "Find the first op that produces NaN, by running op by op (slow).",
    )

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = getattr(self, option.name)
            if value is not None:
                option.check(value)
                if option.file:
                    object.__setattr__(self, option.name, Path(value))


OPTIONS = tuple(Option(f.name, f.default, **f.metadata) for f in fields(Options))
"""What is known of each field of `Options`."""


OF_PREDICTION = ("transport", "emulate", "deadline", "join_timeout", "base_port")
"""The options that a prediction has, too."""


def takes_options(function: Function, names: Sequence[str] | None = None) -> Function:
    """Let `help` show an argument for each option of a function with `**options`, or for
    those with these names."""
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
