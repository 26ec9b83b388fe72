"""The settings of a source of rows: the keys of `data.train` and `data.eval`.

This is the only definition of the keys. The compiler decodes specs with these structs,
plans contain them, and readers receive them.
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
from placer.plan.settings.data.stream import Stream
from placer.plan.settings.data.window import Window
from placer.plan.settings.fields import Count, Name, Seed, doc


class Data(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A source of rows, and how its rows form batches."""

    source: Annotated[str, doc(", ".join(kind.form for kind in KINDS.values()))]
    batch: Annotated[
        Count | None,
        doc("rows of the global batch; eval uses the value of train by default"),
    ] = None
    split: Annotated[
        Literal["train", "test"] | None,
        doc(f"for {WITH_SPLITS}; test is the last fifth of a fixed random permutation"),
    ] = None
    columns: Annotated[
        dict[Name, str | list[str]] | None,
        doc(
            "the column that each input reads; a list or a glob is possible for"
            f" {WITH_COLUMN_LISTS}"
        ),
    ] = None
    shuffle: Annotated[
        bool | Window,
        doc("reshuffle rows in each epoch: true for all rows, or within a window"),
    ] = False
    seed: Annotated[Seed, doc("seed for shuffling")] = 0
    remainder: Annotated[
        Literal["drop", "keep"] | None,
        doc(
            "drop or keep the short last batch of an epoch; by default train drops it and"
            " eval keeps it"
        ),
    ] = None
    stream: Annotated[
        Stream | None,
        doc("train the files of a set in passes, and wait for further files"),
    ] = None
    features: Annotated[
        dict[str, Feature] | None,
        doc("columns that placer computes from the source's columns"),
    ] = None
    csv: Csv | None = None
    parquet: Cells | None = None
    python: Cells | None = None

    @property
    def parsed(self) -> Source:
        """The kind and the path of the source. Raises DataError if it is not valid."""
        return Source.parse(self.source)


class RowSource(Data, frozen=True, kw_only=True):
    """A source of rows with all defaults filled in.

    `ranges` are the valid values of ids and labels; the compiler adds them to the plan.
    """

    batch: Count
    remainder: Literal["drop", "keep"]
    ranges: dict[str, Range] = {}
