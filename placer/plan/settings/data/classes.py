"""The classes that an output of a prediction scores, and the columns that name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from placer.plan.settings.fields import Count

Form = Literal["logits", "probabilities", "logit", "probability"]
"""What an output has for each row: a number for each class, or one number, which is about
class 1 of two."""


class Classes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The classes of an output, in the order of their numbers.

    Attributes:
        form: what the output has for each row.
        count: the number of classes.
        names: the name of each class; empty if classes are known by their numbers.
    """

    form: Form
    count: Count
    names: tuple[str, ...] = ()

    def columns(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the columns of a prediction, as `class_columns` returns
        them."""
        yield f"{prefix}class"
        for name in self.names or range(self.count):
            yield f"{prefix}probability.{name}"
