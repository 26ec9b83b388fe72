"""The attributes of `embedding` for a sparse table, with one row per key."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.declaration import Attr, Attrs, LayerParameter, flag
from placer.place.types import KEYS, TensorType
from placer.plan.settings.mistake import MistakeError
from placer.plan.settings.sparse.sparse_keys import KEYS as SETTINGS
from placer.plan.settings.sparse.sparse_keys import (
    Admit,
    ForgetKeys,
    ScoreKeys,
    read_inputs,
    read_settings,
)
from placer.plan.settings.sparse.table import PARTITIONS


def _attr(
    name: str,
    type_: object,
    doc: str,
    default: object = None,
    choices: tuple[str, ...] = (),
) -> Attr:
    return Attr(name, type_, doc, default, choices=choices, for_parameters=True)


ATTRS = (
    flag(
        "sparse",
        "whether the table is sparse: one row per key, created in training",
        for_parameters=True,
    ),
    _attr("dim", int | None, "the number of columns of a sparse table"),
    _attr("rows", int | None, "the expected number of rows of a sparse table"),
    _attr("partitions", int, "the number of partitions of a sparse table", PARTITIONS),
    _attr("admit", Admit, "which keys receive a row", "always"),
    _attr("forget", ForgetKeys | None, "which rows are forgotten"),
    _attr("score", ScoreKeys | None, "how keys are scored"),
    _attr("capacity", int | None, "the maximum number of rows of a sparse table"),
    _attr("evict", str, "which rows a full table evicts", "lru", ("lru", "lfu")),
    _attr(
        "index", str, "the kind of index of a sparse table", "wide", ("wide", "compact")
    ),
    _attr("default", float, "the value of a key without a row", 0.0),
    _attr("bounds", list[float] | None, "the minimum and maximum of an element"),
)
_DEFAULTS = {attr.name: attr.default for attr in ATTRS}


def check_dense(attrs: Attrs) -> None:
    """Raise OpError if an op has an attribute of sparse tables but is not sparse."""
    for key in ("dim", "rows", *SETTINGS):
        if attrs[key] != _DEFAULTS[key]:
            hint = "write sparse: true, or leave the attribute out"
            raise OpError(f"has '{key}', which needs sparse: true", attr=key, hint=hint)


def sparse_table(attrs: Attrs) -> LayerParameter:
    """Return the settings of an op's sparse table; raise OpError for a wrong attribute.

    `size: [rows, dim]` is accepted as in PaddlePaddle; its rows may be 0.
    """
    rows, dim, size = attrs["rows"], attrs["dim"], attrs["size"]
    if size is not None:
        if dim is not None or len(size) != 2:
            raise OpError("needs either 'dim' or a size [rows, dim]", attr="size")
        if rows is not None and size[0] not in (0, rows):
            message = f"has {rows} 'rows', but a size of {size[0]} rows"
            raise OpError(message, attr="size", hint="write dim instead of size")
        rows, dim = rows if rows is not None else size[0] or None, size[1]
    if dim is None:
        raise OpError(
            "needs 'dim', the number of columns of a row", hint="write dim: 16"
        )
    if dim < 1:
        raise OpError(f"needs a 'dim' of at least 1, not {dim}", attr="dim")
    if rows is not None and rows < 1:
        raise OpError(f"needs 'rows' of at least 1, not {rows}", attr="rows")
    table = TensorType(attrs["dtype"], (KEYS, dim))
    try:
        settings = read_settings(attrs)
    except MistakeError as error:
        mistake = error.mistake
        attr, *keys = map(str, mistake.path)
        raise OpError(
            mistake.message, attr=attr, keys=tuple(keys), hint=mistake.hint
        ) from None
    return LayerParameter(
        "table",
        table,
        "uniform",
        sparse=settings,
        rows=rows,
        inputs=read_inputs(attrs),
    )
