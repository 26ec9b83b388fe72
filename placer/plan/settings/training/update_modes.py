"""How the nodes of a group of parameters agree: the key `update` of an optimizer."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct

from placer.plan.settings.fields import Count, doc
from placer.plan.settings.mistake import Mistake, refuse

SYNC: Final = "sync"
Steps = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Sync(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=SYNC
):
    """Servers sum the gradients of all workers, and update once in each step.

    With backup workers (Chen et al., "Revisiting distributed synchronous SGD", 2016) a
    step takes the gradients of the workers that are first.
    """

    backup: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        doc("how many workers a step does not wait for: those that are last"),
    ] = 0

    @property
    def is_sync(self) -> bool:
        """Whether every worker waits for all others in every step."""
        return self.backup == 0


class Async(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="async"
):
    """Servers apply the gradients of each worker as they arrive.

    A push is the gradient of one step of one worker, or of several steps that the
    worker has merged.
    """

    max_staleness: Annotated[
        Steps | Literal["none"],
        doc(
            "a worker begins step t once all steps up to t - max_staleness - 1 of every"
            " worker are applied; 0 is the mode sync"
        ),
    ] = "none"
    max_merge: Annotated[
        Count, doc("steps that a worker merges into one push at most, while it waits")
    ] = 1
    merge: Annotated[
        Literal["sum", "mean"], doc("how the gradients of merged steps are combined")
    ] = "sum"
    queue: Annotated[
        Count, doc("steps whose gradients wait to be sent before the next step waits")
    ] = 2
    staleness_scale: Annotated[
        bool, doc("divide the learning rate of a push by 1 + its staleness")
    ] = False
    compensate: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        doc(
            "the lambda of DC-ASGD, which corrects gradients by how the parameters moved"
        ),
    ] = None
    waits_for_own = False
    """Whether a worker waits until its own gradients are applied."""
    in_rounds = False
    """Whether servers wait for what all workers send, and workers for the result."""

    @property
    def is_sync(self) -> bool:
        """Whether every worker waits for all others in every step."""
        return self.max_staleness == 0

    @property
    def bound(self) -> int | None:
        """How many steps a worker may be ahead of an update; None without a bound."""
        return None if self.max_staleness == "none" else int(self.max_staleness)

    def __post_init__(self) -> None:
        """Raise MistakeError if these settings contradict each other."""
        refuse(self._find_mistake())

    def _find_mistake(self) -> Mistake | None:
        if self.compensate is not None and self.max_merge > 1:
            return Mistake(
                ("max_merge",),
                "compensate corrects the gradient of one step: max_merge must be 1",
            )
        bound = self.bound
        if bound == 0:
            for name in changed_settings(self):
                if name != "max_staleness":
                    message = f"max_staleness 0 is the mode sync, which has no {name}"
                    return Mistake((name,), message, of_key=True)
        if self.merge != "sum" and self.max_merge == 1:
            message = f"'merge: {self.merge}' has no effect: max_merge is 1"
            return Mistake(("merge",), message)
        if bound is not None and self.max_merge > bound + 1:
            return Mistake(
                ("max_merge",),
                f"max_merge is {self.max_merge}, and max_staleness {bound} allows"
                f" {bound + 1} at most: the first of more steps would not be applied when"
                " the last one may begin",
            )
        return None


class HalfAsync(Struct, frozen=True, forbid_unknown_fields=True, tag="half_async"):
    """As `Async`, but a worker waits in each step until its own gradients are applied. It
    has no settings."""

    max_merge = 1
    merge = "sum"
    queue = 1
    staleness_scale = False
    compensate = None
    waits_for_own = True
    in_rounds = False
    is_sync = False
    bound = None


class Geo(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="geo"
):
    """Workers train values of their own, and exchange differences with the servers.

    A worker keeps the optimizer and its slots. After each of its steps whose number is a
    multiple of `every`, it sends how far its values have moved, and gets those of the
    server (PaddlePaddle's GEO-SGD). With `outer`, the servers wait for the differences of
    all workers, and an optimizer of their own takes a step by the mean of them (DiLoCo,
    Douillard et al. 2023).
    """

    every: Annotated[Count, doc("steps of a worker between two exchanges")]
    scale: Annotated[
        Literal["mean", "sum"],
        doc("mean: a worker sends its difference divided by the number of workers"),
    ] = "mean"
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"] | None,
        doc("that of differences in messages; by default that of the parameters"),
    ] = None
    outer: Annotated[
        dict[str, Any] | None,
        doc("an optimizer of the servers: its rule `op`, its learning rate, and more"),
    ] = None
    waits_for_own = False
    is_sync = False
    bound = None
    staleness_scale = False
    compensate = None

    @property
    def in_rounds(self) -> bool:
        """Whether servers wait for what all workers send, and workers for the result."""
        return self.outer is not None

    def __post_init__(self) -> None:
        """Raise MistakeError if these settings contradict each other."""
        if self.outer is not None and self.scale == "sum":
            message = (
                "an outer optimizer takes the mean of the differences, not their sum"
            )
            refuse(Mistake(("scale",), message))


GradientMode = Async | HalfAsync
"""How workers agree if they send gradients."""
Mode = GradientMode | Geo
"""How workers agree on updates that do not go in lockstep."""
Settings = Sync | Mode
"""All settings of the key `update`."""
MODES: Final[dict[str, type[Settings]]] = {
    SYNC: Sync,
    "async": Async,
    "half_async": HalfAsync,
    "geo": Geo,
}

OF_SERVERS: Final = ("staleness_scale", "compensate")
"""Settings of servers that update by the gradients of single workers."""
OF_DENSE: Final = {
    "max_merge": "their gradients are sent in each step",
    "queue": "their gradients are sent in each step",
}
"""Settings of dense parameters, and why each has no effect on sparse tables."""


def mode_of(update: object) -> Mode | None:
    """Return the mode of the settings `update` of an optimizer; None if its nodes go in
    lockstep."""
    return update if isinstance(update, Mode) else None


def name_of(update: Settings) -> str:
    """Return the name of the mode that settings are of, as in a spec: "async"."""
    return str(update.__struct_config__.tag)


def to_text(update: Settings) -> str | dict[str, Any]:
    """Return settings as the text of a graph has them: the name of a mode, or its name and
    the settings that are not the default.

    >>> to_text(Sync()), to_text(Async(queue=1))
    ('sync', {'async': {'queue': 1}})
    """
    changed = changed_settings(update)
    return SYNC if update == Sync() else {name_of(update): changed}


def from_text(written: Any) -> Settings:
    """Return the settings that `to_text` has given.

    Raises:
        ValueError: these are not the name and the settings of a mode.
    """
    entries = {written: {}} if isinstance(written, str) else written
    names = [*entries] if isinstance(entries, dict) else []
    if len(names) != 1 or names[0] not in MODES:
        raise ValueError(f"needs one of {', '.join(MODES)}, and its settings")
    name, settings = names[0], entries[names[0]]
    try:
        return msgspec.convert(settings, MODES[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error


def changed_settings(update: Settings) -> dict[str, Any]:
    """Return the settings that are not the default."""
    return {
        field.name: value
        for field in msgspec.structs.fields(update)
        if (value := getattr(update, field.name)) != field.default
    }


def describe_mode(mode: Mode) -> str:
    """Return a mode and its settings that are not the default: "async, queue 1"."""
    changed = changed_settings(mode)
    settings = [f"{key} {_describe(value)}" for key, value in changed.items()]
    return ", ".join([name_of(mode), *settings])


def _describe(setting: Any) -> str:
    if not isinstance(setting, dict):
        return str(setting)
    return " ".join(
        [
            f"{setting['op']}",
            *(f"{key} {value}" for key, value in setting.items() if key != "op"),
        ]
    )
