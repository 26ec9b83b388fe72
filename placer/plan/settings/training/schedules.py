"""Learning-rate schedules, as written in a spec.

`placer.tables.learning_rate` computes the learning rates.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Final, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from placer.plan.settings.mistake import Mistake, refuse

NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Steps = Annotated[int, Meta(ge=1)]


class Form(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kind of schedule. The docstring of a subclass shows its syntax and its formula.

    Steps count from 0, the first update.
    """

    def find_mistake(self) -> Mistake | None:
        """Return a mistake in keys that are valid alone, or None."""
        return None

    def __post_init__(self) -> None:
        """Raise MistakeError if there is a mistake."""
        refuse(self.find_mistake())

    @property
    def is_always_zero(self) -> bool:
        """Whether the learning rate is 0 in every step."""
        return False


class Decaying(Form, frozen=True):
    """A schedule that decays by `rate` in `steps` steps."""

    init: NonNegative
    rate: NonNegative
    steps: Steps
    staircase: bool = False

    def find_mistake(self) -> Mistake | None:
        if not self.staircase or self.steps > 1:
            return None
        message = "'staircase' has no effect with steps: 1, since each step is a stair"
        return Mistake(("staircase",), message)

    @property
    def is_always_zero(self) -> bool:
        return self.init == 0


class Exponential(Decaying, frozen=True):
    """{exponential: {init, rate, steps, staircase: false}}:
    init * rate ** (step / steps)"""

    rate: Positive


class NaturalExp(Decaying, frozen=True):
    """{natural_exp: {init, rate, steps, staircase: false}}:
    init * exp(-rate * step / steps)"""


class InverseTime(Decaying, frozen=True):
    """{inverse_time: {init, rate, steps, staircase: false}}:
    init / (1 + rate * step / steps)"""


class Linear(Form, frozen=True):
    """{linear: {init, end, steps}}: a straight line from init to end"""

    init: NonNegative
    end: NonNegative
    steps: Steps

    @property
    def is_always_zero(self) -> bool:
        return self.init == self.end == 0


class Polynomial(Linear, frozen=True):
    """{polynomial: {init, end, steps, power: 1, cycle: false}}:
    end + (init - end) * (1 - step / steps) ** power"""

    power: Positive = 1.0
    cycle: bool = False

    def find_mistake(self) -> Mistake | None:
        if self.init != self.end:
            return None
        for key, default in (("power", 1.0), ("cycle", False)):
            if getattr(self, key) != default:
                message = f"'{key}' has no effect: 'init' and 'end' are equal"
                return Mistake((key,), message)
        return None


class Cosine(Form, frozen=True):
    """{cosine: {init, steps, alpha: 0}}: half a cosine period from init to alpha * init
    (Loshchilov and Hutter 2017)"""

    init: NonNegative
    steps: Steps
    alpha: NonNegative = 0.0

    @property
    def is_always_zero(self) -> bool:
        return self.init == 0


class Piecewise(Form, frozen=True):
    """{piecewise: {boundaries: [STEP, …], values: [RATE, …]}}: the first rate up to the
    first boundary, the second rate from this step on, and so on"""

    boundaries: list[Steps]
    values: list[NonNegative]

    def find_mistake(self) -> Mistake | None:
        for index, (before, step) in enumerate(pairwise(self.boundaries), start=1):
            if step <= before:
                message = f"'boundaries' must increase, but {step} follows {before}"
                return Mistake(("boundaries", index), message)
        steps, rates = len(self.boundaries), len(self.values)
        if rates == steps + 1:
            return None
        message = (
            "'values' must have one more item than 'boundaries', not"
            f" {rates} for {steps}"
        )
        return Mistake(("values",), message)

    @property
    def is_always_zero(self) -> bool:
        return not any(self.values)


class Noam(Form, frozen=True):
    """{noam: {size, warmup, factor: 1}}: factor * size ** -0.5 * min(n ** -0.5,
    n * warmup ** -1.5), where the step n counts from 1 (Vaswani et al. 2017)"""

    size: Steps
    warmup: Steps
    factor: Positive = 1.0


class Warmup(Form, frozen=True, kw_only=True, rename={"from_": "from"}):
    """{warmup: {steps, from: 0.0, then: SCHEDULE}}: a straight line from `from` to the
    first rate of `then`; the steps of `then` count from the end of the warm-up"""

    steps: Steps
    from_: NonNegative = 0.0
    then: Rate

    @property
    def is_always_zero(self) -> bool:
        return self.from_ == 0 and is_always_zero(self.then)


class LinearScaling(Form, frozen=True, kw_only=True):
    """{linear_scaling: {base_batch: 256, warmup: 0, then: SCHEDULE}}: `then` times
    batch / base_batch, after `warmup` steps in a straight line from the unscaled rate (Goyal
    et al. 2017); `batch` defaults to the global batch"""

    batch: Annotated[int, Meta(ge=1)] | None = None
    base_batch: Annotated[int, Meta(ge=1)] = 256
    warmup: Annotated[int, Meta(ge=0)] = 0
    then: Rate

    @property
    def is_always_zero(self) -> bool:
        return is_always_zero(self.then)


class Schedule(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A learning rate that depends on the step. Exactly one key is set."""

    exponential: Exponential | None = None
    natural_exp: NaturalExp | None = None
    inverse_time: InverseTime | None = None
    linear: Linear | None = None
    polynomial: Polynomial | None = None
    cosine: Cosine | None = None
    piecewise: Piecewise | None = None
    noam: Noam | None = None
    warmup: Warmup | None = None
    linear_scaling: LinearScaling | None = None

    def __post_init__(self) -> None:
        """Raise MistakeError unless exactly one key is set."""
        names = self._names()
        if len(names) != 1:
            refuse(Mistake((), f"a schedule needs exactly one name, not {len(names)}"))

    def _names(self) -> list[str]:
        keys = self.__struct_fields__
        return [key for key in keys if getattr(self, key) is not None]

    @property
    def name(self) -> str:
        """The name of the schedule, such as `cosine`."""
        return self._names()[0]

    @property
    def form(self) -> Form:
        """The schedule itself, with its settings."""
        form: Form = getattr(self, self.name)
        return form


Rate = NonNegative | Schedule
"""A learning rate: a number, or a schedule."""

FORMS: Final[dict[str, type[Form]]] = {
    key: get_args(type_)[0] for key, type_ in get_type_hints(Schedule).items()
}
"""The schedules by name."""


def read_rate(written: Any) -> Rate:
    """Return a learning rate from its form in a spec.

    >>> read_rate({"warmup": {"steps": 5, "then": 1}}).form
    Warmup(steps=5, from_=0.0, then=1.0)

    Raises msgspec.ValidationError if the learning rate is invalid.
    """
    rate: Rate = msgspec.convert(written, Rate)
    return rate


def is_always_zero(rate: Rate) -> bool:
    """Whether a learning rate is 0 in every step."""
    return rate.form.is_always_zero if isinstance(rate, Schedule) else rate == 0


def fill_batch(rate: Rate, batch: int) -> Rate:
    """Fill the global batch into a learning rate that depends on the batch size."""
    if not isinstance(rate, Schedule):
        return rate
    form = rate.form
    if isinstance(form, Warmup | LinearScaling):
        form = structs.replace(form, then=fill_batch(form.then, batch))
    if isinstance(form, LinearScaling) and form.batch is None:
        form = structs.replace(form, batch=batch)
    return structs.replace(rate, **{rate.name: form})
