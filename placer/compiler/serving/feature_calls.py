"""Writes the statements of prepare.py that compute features of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placer.compiler.emit.code import Call, Expression, literal
from placer.compiler.serving.definitions import Copies
from placer.compiler.serving.prepare_features import NUMBERS, xxh64
from placer.plan.settings.data.cell_options import Cells, first_match
from placer.plan.settings.data.features import Argument, Feature, Features
from placer.plan.settings.data.source import RowSource

FEATURES = "placer.compiler.serving.prepare_features"
"""The module of the functions that the statements call."""


def needed_features(names: Iterable[str], features: Features) -> dict[str, Feature]:
    """Return the features in `names` and their dependencies, expanded, in order."""
    needed: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name in features and name not in needed:
            needed.add(name)
            waiting += features[name].operands
    return {name: feature for name, feature in features.items() if name in needed}


def feature_calls(features: Features, data: RowSource, copies: Copies) -> list[Call]:
    """Return the statements that add features to the dict `columns`.

    The dict `keys` holds the keys of features by name, and the keys of other parts of
    crosses by name and seed.

    Args:
        features: the needed features, expanded.
        data: the source, with the options of its columns.
        copies: receives the functions that the statements call.
    """
    writer = _Writer(features, data, copies)
    for name, feature in features.items():
        writer.add(name, feature)
    return list(writer.calls.values())


class _Writer:
    """Writes the calls of the functions of prepare.py, by assignment target."""

    def __init__(self, features: Features, data: RowSource, copies: Copies) -> None:
        self.calls: dict[str, Call] = {}
        self._features, self._copies = features, copies
        self._is_csv = data.parsed.kind == "csv"
        self._form = data.csv or data.parquet or data.python or Cells()

    def add(self, name: str, feature: Feature) -> None:
        """Add the statements that compute a feature."""
        column = f"columns[{literal(name)}]"
        if not feature.has_key:
            function = NUMBERS[feature.kind].__name__
            self._assign(column, function, self._number(feature))
            return
        key = f"keys[{literal(name)}]"
        target = key if feature.bins is not None else f"{column} = {key}"
        if feature.is_cross:
            parts = [self._part(part, feature.seed) for part in feature.operands]
            self._assign(target, "cross_keys", [_list(parts), literal(feature.seed)])
        else:
            (source,) = feature.operands
            field = source if feature.field is None else feature.field
            self._hash(target, source, field, feature.seed, feature.type)
        if feature.bins is not None:
            self._assign(column, "in_bins", [key, literal(feature.bins)])

    def _part(self, name: str, seed: int) -> str:
        """Return the keys of a part of a cross; compute them once."""
        feature = self._features.get(name)
        if feature is not None and feature.has_key:
            return f"keys[{literal(name)}]"
        key = f"keys[{literal(name)}, {literal(seed)}]"
        if key not in self.calls and feature is None:
            self._hash(key, name, name, seed, "text")
        elif key not in self.calls:
            numbers = f"columns[{literal(name)}]"
            of_field = literal(_field_seed(name, seed))
            self._assign(key, "hash_numbers", [numbers, of_field])
        return key

    def _hash(
        self, target: str, column: str, field: str, seed: int, type_: str
    ) -> None:
        arguments = ["columns", literal(column), literal(_field_seed(field, seed))]
        if type_ == "integer":
            self._assign(target, "hash_integers", [*arguments, *self._missing(column)])
        else:
            option = ["empty_is_missing=True"] if self._is_csv else []
            option += self._markers(column)
            self._assign(target, "hash_texts", [*arguments, *option])

    def _number(self, feature: Feature) -> list[str | Expression]:
        """Return the arguments from which a feature of numbers is computed."""
        (operand,) = feature.operands
        arguments = map(_argument, feature.declaration.arguments(feature))
        return ["columns", literal(operand), *arguments, *self._missing(operand)]

    def _missing(self, column: str) -> list[str]:
        missing = first_match(self._form.missing, column)
        options = [] if missing is None else [f"missing={literal(missing)}"]
        return [*options, *self._markers(column)]

    def _markers(self, column: str) -> list[str]:
        markers = listed_markers(self._form, column)
        return [f"markers={literal(markers)}"] if markers else []

    def _assign(
        self, target: str, function: str, arguments: Sequence[str | Expression]
    ) -> None:
        copied = self._copies.add(FEATURES, function)
        self.calls[target] = Call(copied, arguments, [target])


def _argument(argument: Argument) -> str | Expression:
    if isinstance(argument, tuple):
        return _list(map(literal, argument))
    return literal(argument)


def _list(items: Iterable[str]) -> Expression:
    return Expression("", "", tuple(map(Expression, items)), ("[", "]"))


def listed_markers(form: Cells, column: str) -> tuple[str | float, ...]:
    """Return the `missing_values` of a column: the texts, then the numbers."""
    markers = form.markers(column)
    return (*sorted(markers.texts), *sorted(markers.numbers))


def _field_seed(field: str, seed: int) -> int:
    return xxh64(field.encode(), seed)
