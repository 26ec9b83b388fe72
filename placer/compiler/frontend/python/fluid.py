"""Spellings of PaddlePaddle's Fluid that differ from a spec.

Functions of `placer.layers` with the decorator `fluid_keywords` also accept Fluid's
keywords. `placer.layers` re-exports the functions in `OWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar
from typing import cast as typed

from placer.compiler.frontend.python.ops import record_op
from placer.compiler.frontend.python.program import current_program
from placer.compiler.frontend.python.sparse_admission import Entry, attributes_of
from placer.compiler.frontend.python.variable import Variable
from placer.compiler.frontend.sections.graph import NARROWER
from placer.place.types import BATCH
from placer.plan.settings.checks import describe_value
from placer.system.callsite import call_error

Function = TypeVar("Function", bound=Callable[..., Any])

SPELLINGS = {
    "fc": {"input": "x", "act": "activation"},
    "embedding": {
        "input": "ids",
        "padding_idx": "padding",
        "is_sparse": "sparse",
    },
}
"""For each op kind: Fluid's keywords, and the argument that each stands for."""

RENAMED = {"mean": "mean_metric"}
"""Op kinds whose function has another name, because Fluid uses the name for something
else."""

OWN = ("Embedding", "cast", "cross_entropy", "data", "mean", "sparse_embedding")
"""The functions of this file that `placer.layers` re-exports."""


def fluid_keywords(kind: str) -> Callable[[Function], Function]:
    """Decorate a function of op `kind` to accept Fluid's keywords too."""
    spellings = SPELLINGS[kind]

    def wrap(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            if "padding_idx" in spellings and keywords.get("padding_idx") is not None:
                keywords["padding_idx"] = _count_from_start(*args, **keywords)
            for theirs, ours in spellings.items():
                if theirs in keywords:
                    if ours in keywords:
                        message = f"{kind} has both '{theirs}' and '{ours}'"
                        raise call_error(
                            message, "they mean the same: pass one of them"
                        )
                    keywords[ours] = keywords.pop(theirs)
            if keywords.get("activation", "") is None:
                del keywords["activation"]
            return function(*args, **keywords)

        return typed(Function, call)

    return wrap


def _count_from_start(
    *args: Any, padding_idx: Any, size: Any = None, **others: Any
) -> Any:
    """Return the index of a table row. In Fluid, a negative index counts from the end.
    The arguments are those of `embedding`. The op reports invalid ones."""
    match args[1] if len(args) > 1 else size, padding_idx:
        case [int(vocabulary), *_], int(index) if index < 0:
            if not vocabulary:
                message = (
                    f"a table for any keys has no end, so it cannot count {index} from"
                    " the end"
                )
                raise call_error(message, "pass the key as padding_idx")
            if index < -vocabulary:
                message = f"a table of {vocabulary} rows has no row {index}"
                hint = "use padding for an id outside the table"
                raise call_error(message, hint)
            return index + vocabulary
    return padding_idx


def data(
    name: str,
    type: str | None = None,
    *,
    shape: Sequence[int | str | None] | None = None,
    dtype: str | None = None,
) -> Variable:
    """An input: a value that the source provides for each row.

    Write data("x", "float32[batch, 12]"), or data("x", shape=[12], dtype="float32"). A
    shape that does not start with the batch (None, -1 or "batch") is the shape of one
    row. With `shape`, `type` is another name for `dtype`. If the precision is float32,
    64-bit integers are read as 32 bits, and their range is checked.
    """
    if shape is None:
        if type is None or dtype is not None:
            hint = f'write data("{name}", "float32[batch, 12]")'
            raise call_error(f"input '{name}' has no type", hint)
        return current_program().declare(name, type)
    if type is not None and dtype is not None:
        message = f"input '{name}' has both 'type' and 'dtype'"
        raise call_error(message, "they mean the same: pass one of them")
    if not isinstance(shape, list | tuple):
        expected = f"the shape of input '{name}' must be a list"
        message = f"{expected}, not {describe_value(shape)}"
        raise call_error(message, "write [12] for rows of 12 numbers")
    has_batch = bool(shape) and shape[0] in (None, -1, BATCH)
    dims = ", ".join(map(str, (BATCH, *(shape[1:] if has_batch else shape))))
    return current_program().declare(name, f"{dtype or type or 'float32'}[{dims}]")


def cast(x: Variable, dtype: str, *, name: str | None = None) -> Variable:
    """Convert the elements to another dtype.

    Args:
        x: any dtype and shape.
        dtype: bool, float16, bfloat16, float32, float64, or an integer dtype. If the
            precision is float32, 64-bit integers become 32-bit integers, as for inputs.
    """
    narrow = current_program().precision == "float32" and dtype in ("int64", "uint64")
    if narrow and isinstance(x, Variable) and not x.type.is_float:
        dtype = NARROWER[dtype]
    return record_op("cast", {"x": x, "dtype": dtype, "name": name})


def cross_entropy(
    input: Variable, label: Variable, *, name: str | None = None
) -> Variable:
    """The mean of -log(input[label]), for probabilities such as a softmax.

    `softmax_cross_entropy` computes the same from logits, and is more accurate.

    Args:
        input: float, [batch, …, classes]; sums to 1 along the last dimension.
        label: integer, [batch, …], or with a last dimension of 1.
    """
    is_valid = isinstance(input, Variable) and isinstance(label, Variable)
    if is_valid and len(label.shape) == len(input.shape) and label.shape[-1] == 1:
        label = record_op("squeeze", {"x": label, "axis": -1})
    # For probabilities p, log softmax(log p) = log p. Clip p, because log 0 is
    # infinite.
    positive = record_op("clip", {"x": input, "min": 1e-30})
    logits = record_op("log", {"x": positive})
    return record_op(
        "softmax_cross_entropy", {"logits": logits, "label": label, "name": name}
    )


def mean(x: Variable, *, name: str | None = None) -> Variable:
    """The mean of all elements, for a loss: `reduce_mean` over all dimensions.

    The op `mean` of a spec is called `mean_metric` here. It is a metric, so no op can
    use it.
    """
    return record_op("reduce_mean", {"x": x, "name": name})


def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Entry | None = None,
    table_class: str = "MemorySparseTable",
    param_attr: str | Variable | None = None,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Looks up rows of a sparse table, which has one row for each key.

    This is `embedding` with `sparse=True`, with PaddlePaddle's arguments
    (docs/learn/sparse-tables.md).

    Args:
        input: integers, any shape; all 64 bits of an int64 or uint64 input are the key.
        size: [rows, dim]. `rows` does not limit the number of keys. It only scales initial
            values, if the initializer depends on the size of a matrix.
        padding_idx: an id without a row; a negative id counts from the end of the rows in
            `size`.
        is_test: must be False. A lookup never creates rows, even in training.
        entry: which keys get a row: `CountFilterEntry`, `ProbabilityEntry`, or with scores
            `ShowClickEntry`; by default all keys.
        table_class: MemorySparseTable or CommonSparseTable; they mean the same here.
        param_attr: the name of the table, or an existing table. Calls with the same name
            share the table.
        dtype: float32 or float64.
    """
    if is_test:
        raise call_error(
            "sparse_embedding does not accept is_test=True: one program is used for"
            " training, evaluation and prediction",
            "leave it out: a lookup never creates rows",
        )
    if table_class not in _IN_MEMORY:
        raise call_error(
            f"table_class must be {' or '.join(_IN_MEMORY)}, not"
            f" {describe_value(table_class)}",
            _OTHER_TABLES.get(table_class),
        )
    attributes = {"sparse": True, "dtype": dtype, **attributes_of(entry)}
    return _look_up(input, size, padding_idx, param_attr, name, attributes)


_IN_MEMORY = ("MemorySparseTable", "CommonSparseTable")
_OTHER_TABLES = {
    "SSDSparseTable": "a server keeps rows in memory",
    "MemorySparseGeoTable": "use the optimizer's `update` to choose how workers train",
    "SparseGeoTable": "use the optimizer's `update` to choose how workers train",
}
"""Why PaddlePaddle's other table classes are unsupported."""


def Embedding(  # noqa: N802 - the name that PaddlePaddle has for it
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    sparse: bool = False,
    weight_attr: str | Variable | None = None,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Looks up rows of a table: `embedding`, with PaddlePaddle's arguments.

    Args:
        input: integers, any shape.
        size: [rows, dim].
        padding_idx: an id without a row; a negative id counts from the end.
        sparse: whether the table has one row for each key (docs/learn/sparse-tables.md).
        weight_attr: the name of the table, or an existing table. Calls with the same name
            share the table.
        dtype: the dtype of the table.
    """
    attributes = {"sparse": sparse, "dtype": dtype}
    return _look_up(input, size, padding_idx, weight_attr, name, attributes)


def _look_up(
    ids: Variable,
    size: Sequence[int],
    padding_idx: int | None,
    table: str | Variable | None,
    name: str | None,
    attributes: dict[str, Any],
) -> Variable:
    padding = _count_from_start(ids, size, padding_idx=padding_idx)
    params: dict[str, Variable] | None = None
    if isinstance(table, str):
        found = current_program().parameters_of(table).get("table")
        if found is not None:
            params = {"table": found}
        elif name in (None, table):
            name = table
        else:
            message = f"the table of the op '{name}' cannot be called '{table}'"
            raise call_error(
                message, "the first op that uses a table must have the table's name"
            )
    elif isinstance(table, Variable):
        params = {"table": table}
    elif table is not None:
        raise call_error(
            "a table must be a name or a table of the program, not"
            f" {describe_value(table)}",
            "use Program(parameters=[…]) for initial values, and to fix parameters",
        )
    arguments = {"ids": ids, "size": size, "padding": padding, "params": params}
    return record_op("embedding", {**arguments, "name": name, **attributes})
