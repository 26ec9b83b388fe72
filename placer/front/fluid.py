"""Fluid's spellings, where they differ from a spec's: all of them stand here.

`placer.layers` gives `respelt` functions the keywords of Fluid beside its own, and takes
the functions here as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar
from typing import cast as typed

from placer.callsite import caller
from placer.config.checks import shown
from placer.errors import SpecError
from placer.front.ops import one
from placer.front.program import current_program
from placer.front.variable import Variable
from placer.spec.sections.graph import NARROWER
from placer.types import BATCH

Function = TypeVar("Function", bound=Callable[..., Any])

SPELLINGS = {
    "fc": {"input": "x", "act": "activation"},
    "embedding": {"input": "ids"},
}
"""Fluid's keywords of an op, and what they are called here."""

RENAMED = {"mean": "mean_metric"}
"""Kinds whose names are functions of Fluid that do something else."""

OWN = ("cast", "cross_entropy", "data", "mean")
"""The functions of this file that are part of `placer.layers`."""


def respelt(kind: str) -> Callable[[Function], Function]:
    """A function that takes Fluid's keywords for op `kind` too."""
    spellings = SPELLINGS[kind]

    def wrap(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for theirs, ours in spellings.items():
                if theirs in given:
                    if ours in given:
                        message = f"{kind} is given both '{theirs}' and '{ours}'"
                        raise SpecError(
                            message, span=caller(), hint="they are the same"
                        )
                    given[ours] = given.pop(theirs)
            if given.get("activation", "") is None:
                del given["activation"]
            if given.pop("is_sparse", False):
                raise SpecError(
                    "sparse tables are not there yet",
                    span=caller(),
                    hint="leave is_sparse out: the table is dense",
                )
            return function(*args, **given)

        return typed(Function, call)

    return wrap


def data(
    name: str,
    type: str | None = None,
    *,
    shape: Sequence[int | str | None] | None = None,
    dtype: str | None = None,
) -> Variable:
    """An input: what a row holds under that name.

    data("x", "float32[batch, 12]"), or data("x", shape=[12], dtype="float32"): a shape
    that does not begin with the batch (None, -1 or "batch") is that of one row. `type=`
    is read for `dtype=`, too. Integers of 64 bits are read as 32 unless the precision is
    float64, their range is checked.
    """
    if shape is None:
        if type is None or dtype is not None:
            raise SpecError(
                f"the type of input '{name}' is not said",
                span=caller(),
                hint=f'write data("{name}", "float32[batch, 12]")',
            )
        return current_program().declare(name, type)
    if type is not None and dtype is not None:
        message = f"input '{name}' is given both 'type' and 'dtype'"
        raise SpecError(message, span=caller(), hint="they are the same")
    if not isinstance(shape, list | tuple):
        message = f"the shape of input '{name}' must be a list, not {shown(shape)}"
        raise SpecError(message, span=caller(), hint="[12] is a row of 12")
    begins = bool(shape) and shape[0] in (None, -1, BATCH)
    dims = ", ".join(map(str, (BATCH, *(shape[1:] if begins else shape))))
    return current_program().declare(name, f"{dtype or type or 'float32'}[{dims}]")


def cast(x: Variable, dtype: str, *, name: str | None = None) -> Variable:
    """The same numbers as another dtype.

    x: any dtype and shape.
    dtype: bool, float16, bfloat16, float32, float64, or an integer's. Where the
        precision is float32, an integer that is cast to 64 bits has 32, as inputs have.
    """
    narrow = current_program().precision == "float32" and dtype in ("int64", "uint64")
    if narrow and isinstance(x, Variable) and not x.type.is_float:
        dtype = NARROWER[dtype]
    return one("cast", {"x": x}, {"dtype": dtype}, name)


def cross_entropy(
    input: Variable, label: Variable, *, name: str | None = None
) -> Variable:
    """The mean of -log(input[label]), for probabilities such as softmax gives.

    `softmax_cross_entropy` of what softmax takes is the same, and more exact.

    input: float, [batch, …, classes], with sums of 1.
    label: integer, [batch, …], or with a last dimension of 1.
    """
    given = isinstance(input, Variable) and isinstance(label, Variable)
    if given and len(label.shape) == len(input.shape) and label.shape[-1] == 1:
        label = one("squeeze", {"x": label}, {"axis": -1})
    # Of probabilities, log p is log softmax(log p). A p of 0 has no logarithm.
    above = one("clip", {"x": input}, {"min": 1e-30})
    logits = one("log", {"x": above}, {})
    return one("softmax_cross_entropy", {"logits": logits, "label": label}, {}, name)


def mean(x: Variable, *, name: str | None = None) -> Variable:
    """The mean of all elements, as a loss has it: `reduce_mean` of all of them.

    `mean_metric` is the spec's op `mean`, which is watched and not computed with.
    """
    return one("reduce_mean", {"x": x}, {}, name)
