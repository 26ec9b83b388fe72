"""Finds the columns and the features that feed the inputs of a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from placer.plan.settings.data.columns import (
    duplicate_column_error,
    in_natural_order,
    select_columns,
)
from placer.plan.settings.data.feature_columns import expand_features, source_columns
from placer.plan.settings.data.features import Features
from placer.plan.settings.data.sources import errors_of_input, missing_column_error
from placer.readers.arguments import ReadRequest


@dataclass(frozen=True)
class Feeds:
    """The columns that feed the inputs.

    Attributes:
        inputs: the columns and features that feed each input, in C order, including
            `options.other_columns`.
        features: the features of the source, expanded.
    """

    inputs: Mapping[str, tuple[str, ...]]
    features: Features

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The columns of the source that each input is computed from."""
        return {
            name: tuple(
                c for each in feeds for c in source_columns(each, self.features)
            )
            for name, feeds in self.inputs.items()
        }

    @cached_property
    def read(self) -> list[str]:
        """The columns of the source to read."""
        return list(dict.fromkeys(c for each in self.sources.values() for c in each))


def find_feeds(request: ReadRequest, names: Sequence[str]) -> Feeds:
    """Return the columns that feed the inputs, of a source with these columns.

    Raises DataError if they do not fit the inputs, or a feature needs a missing column.
    """
    source, to_predict = request.source, request.options.to_predict
    declared = request.data.features or {}
    ordered = in_natural_order(names)
    features = expand_features(source.text, declared, ordered, keeps_missing=to_predict)
    inputs: dict[str, tuple[str, ...]] = {}
    for each in request.used:
        with errors_of_input(each.name):
            inputs[each.name] = select_columns(
                source, each, request.feeds[each.name], ordered, [*features]
            )
    feeds, in_file = Feeds(inputs, features), Counter(names)
    for name, columns in feeds.sources.items():
        for column in columns:
            if column not in in_file:
                raise missing_column_error(source.text, column, name, tuple(names))
            if in_file[column] > 1:
                raise duplicate_column_error(source.text, column)
    return feeds


def wanted_columns(request: ReadRequest, name: str) -> tuple[str, ...]:
    """Return the columns, features or globs that the spec names for an input."""
    wanted = request.feeds[name]
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)
