"""The settings of a source of rows: the keys of `data.train` and `data.eval`.

The keys, their types, defaults and descriptions are written here only. A spec is decoded
by these structs, a model and a plan contain them, and readers take them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from placer.plan.settings.data.cell_options import Cells, Csv
from placer.plan.settings.data.columns import Range
from placer.plan.settings.data.features import Feature
from placer.plan.settings.data.sources import (
    KINDS,
    WITH_COLUMN_LISTS,
    WITH_SPLITS,
    Source,
)
from placer.plan.settings.data.window import Window
from placer.plan.settings.fields import Count, Name, Seed, doc


class Data(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A source of rows, and how rows are divided into batches."""

    source: Annotated[str, doc(", ".join(kind.form for kind in KINDS.values()))]
    batch: Annotated[
        Count | None,
        doc("rows of the global batch; by default, eval uses that of train"),
    ] = None
    split: Annotated[
        Literal["train", "test"] | None,
        doc(f"for {WITH_SPLITS}; test is the last fifth of a fixed permutation"),
    ] = None
    columns: Annotated[
        dict[Name, str | list[str]] | None,
        doc(
            "the column that each input reads; also a list or a glob for"
            f" {WITH_COLUMN_LISTS}"
        ),
    ] = None
    shuffle: Annotated[
        bool | Window,
        doc("whether rows have a new order in each epoch: of all rows, or in a window"),
    ] = False
    seed: Annotated[Seed, doc("seed of the shuffle")] = 0
    remainder: Annotated[
        Literal["drop", "keep"] | None,
        doc(
            "the short last batch of an epoch; by default train drops it, eval keeps it"
        ),
    ] = None
    features: Annotated[
        dict[str, Feature] | None,
        doc("columns that are computed from those of the source"),
    ] = None
    csv: Csv | None = None
    parquet: Cells | None = None
    python: Cells | None = None

    @property
    def parsed(self) -> Source:
        """The kind and the path of the source. Raises DataError if it is not valid."""
        return Source.parse(self.source)


class RowSource(Data, frozen=True, kw_only=True):
    """A source of rows with a value for all that a spec may leave out.

    `ranges` are the valid values of inputs that are used as indices (ids and labels),
    which the compiler adds to the plan.
    """

    batch: Count
    remainder: Literal["drop", "keep"]
    ranges: dict[str, Range] = {}
