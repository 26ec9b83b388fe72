"""The classes that a prediction output scores, and the columns of the result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from placer.plan.settings.fields import Count

Form = Literal["logits", "probabilities", "logit", "probability"]
"""The output for each row: one number per class, or one number for class 1 of two."""


class Classes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The classes of an output, in the order of their numbers.

    Attributes:
        form: what the output contains for each row.
        count: the number of classes.
        names: the name of each class; empty if classes have only numbers.
    """

    form: Form
    count: Count
    names: tuple[str, ...] = ()

    def columns(self, prefix: str = "") -> Iterator[str]:
        """Yield the column names in the file of a prediction, as `class_columns`."""
        yield f"{prefix}class"
        for name in self.names or range(self.count):
            yield f"{prefix}probability.{name}"
