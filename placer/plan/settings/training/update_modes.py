"""How workers agree on updates: the key `update` of an optimizer."""

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
    """Servers sum the gradients of all workers, and update once per step.

    With backup workers, a step uses the gradients of the fastest workers only (Chen et
    al., "Revisiting distributed synchronous SGD", 2016).
    """

    backup: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        doc("number of stragglers that each step ignores"),
    ] = 0

    @property
    def is_sync(self) -> bool:
        """Whether every worker waits for all others in every step."""
        return self.backup == 0


class Async(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="async"
):
    """Servers apply the gradients of each worker as they arrive.

    A push contains the gradient of one step, or of several steps that the worker has
    merged.
    """

    max_staleness: Annotated[
        Steps | Literal["none"],
        doc(
            "how many steps the updates may lag behind: a worker starts step t once all"
            " workers' steps up to t - max_staleness - 1 are applied; 0 means sync"
        ),
    ] = "none"
    max_merge: Annotated[
        Count, doc("maximum number of steps that a waiting worker merges into one push")
    ] = 1
    merge: Annotated[
        Literal["sum", "mean"], doc("how to combine the gradients of merged steps")
    ] = "sum"
    queue: Annotated[
        Count, doc("number of steps with unsent gradients before the next step waits")
    ] = 2
    staleness_scale: Annotated[
        bool, doc("divide the learning rate of a push by 1 + its staleness")
    ] = False
    compensate: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        doc(
            "the lambda of DC-ASGD, which corrects gradients for parameter changes since"
            " the pull"
        ),
    ] = None
    waits_for_own = False
    """Whether a worker waits until its gradients are applied."""
    in_rounds = False
    """Whether servers wait for messages of all workers, and workers for the result."""

    @property
    def is_sync(self) -> bool:
        """Whether every worker waits for all others in every step."""
        return self.max_staleness == 0

    @property
    def bound(self) -> int | None:
        """How many steps a worker may run ahead of the updates; None if unlimited."""
        return None if self.max_staleness == "none" else int(self.max_staleness)

    def __post_init__(self) -> None:
        """Raise MistakeError if the settings contradict each other."""
        refuse(self._find_mistake())

    def _find_mistake(self) -> Mistake | None:
        if self.compensate is not None and self.max_merge > 1:
            return Mistake(
                ("max_merge",),
                "'compensate' corrects the gradient of single steps: set max_merge to 1",
            )
        bound = self.bound
        if bound == 0:
            for name in changed_settings(self):
                if name != "max_staleness":
                    message = (
                        f"max_staleness 0 means 'update: sync', which has no {name}"
                    )
                    return Mistake((name,), message, of_key=True)
        if self.merge != "sum" and self.max_merge == 1:
            message = f"'merge: {self.merge}' has no effect with max_merge: 1"
            return Mistake(("merge",), message)
        if bound is not None and self.max_merge > bound + 1:
            return Mistake(
                ("max_merge",),
                f"max_merge is {self.max_merge}, but max_staleness {bound} allows at most"
                f" {bound + 1}: the first merged step must be applied before the last"
                " one starts",
            )
        return None


class HalfAsync(Struct, frozen=True, forbid_unknown_fields=True, tag="half_async"):
    """As `Async`, but in each step a worker waits until its gradients are applied.

    The mode has no settings.
    """

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
    """Workers train local values, and exchange differences with the servers (GEO-SGD).

    Each worker runs the optimizer itself. After every `every` steps it sends the change of
    its values, and receives the values of the server, as in PaddlePaddle. With `outer`,
    servers wait for the differences of all workers. An outer optimizer then takes a step
    by their mean (DiLoCo, Douillard et al. 2023).
    """

    every: Annotated[Count, doc("number of worker steps between exchanges")]
    scale: Annotated[
        Literal["mean", "sum"],
        doc("mean: divide a worker's difference by the number of workers"),
    ] = "mean"
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"] | None,
        doc("dtype of differences in messages; the parameters' dtype by default"),
    ] = None
    outer: Annotated[
        dict[str, Any] | None,
        doc("optimizer of the servers, with its rule `op` and its learning rate"),
    ] = None
    waits_for_own = False
    is_sync = False
    bound = None
    staleness_scale = False
    compensate = None

    @property
    def in_rounds(self) -> bool:
        """Whether servers wait for messages of all workers, and workers for the result."""
        return self.outer is not None

    def __post_init__(self) -> None:
        """Raise MistakeError if the settings contradict each other."""
        if self.outer is not None and self.scale == "sum":
            message = (
                "an outer optimizer takes the mean of the differences, not their sum"
            )
            refuse(Mistake(("scale",), message))


GradientMode = Async | HalfAsync
"""The asynchronous modes in which workers send gradients."""
Mode = GradientMode | Geo
"""All asynchronous modes."""
Settings = Sync | Mode
"""The settings of all modes."""
MODES: Final[dict[str, type[Settings]]] = {
    SYNC: Sync,
    "async": Async,
    "half_async": HalfAsync,
    "geo": Geo,
}

OF_SERVERS: Final = ("staleness_scale", "compensate")
"""Settings for servers that apply the gradients of single workers."""
OF_DENSE: Final = {
    "max_merge": "their gradients are sent in each step",
    "queue": "their gradients are sent in each step",
}
"""Settings for dense parameters, with the reason why sparse tables ignore them."""


def mode_of(update: object) -> Mode | None:
    """Return the asynchronous mode of an optimizer's `update`; None if synchronous."""
    return update if isinstance(update, Mode) else None


def name_of(update: Settings) -> str:
    """Return the name of a mode as in a spec, such as "async"."""
    return str(update.__struct_config__.tag)


def to_text(update: Settings) -> str | dict[str, Any]:
    """Return settings as in the text of a graph: a mode's name, with changed settings.

    >>> to_text(Sync()), to_text(Async(queue=1))
    ('sync', {'async': {'queue': 1}})
    """
    changed = changed_settings(update)
    return SYNC if update == Sync() else {name_of(update): changed}


def from_text(written: Any) -> Settings:
    """Parse the result of `to_text`.

    Raises:
        ValueError: the input is not a mode with valid settings.
    """
    entries = {written: {}} if isinstance(written, str) else written
    names = [*entries] if isinstance(entries, dict) else []
    if len(names) != 1 or names[0] not in MODES:
        raise ValueError(f"needs one of {', '.join(MODES)}, with its settings")
    name, settings = names[0], entries[names[0]]
    try:
        return msgspec.convert(settings, MODES[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error


def changed_settings(update: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {
        field.name: value
        for field in msgspec.structs.fields(update)
        if (value := getattr(update, field.name)) != field.default
    }


def describe_mode(mode: Mode) -> str:
    """Describe a mode and its changed settings, as in "async, queue 1"."""
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
