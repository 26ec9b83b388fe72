"""Errors of flatten, tile, transpose, squeeze, expand_dims, split, slice and pad."""

import pytest
from support.op_use import Use

from placer.errors import OpError

ROWS = ("float32[batch, 4]",)
INVALID_ATTRS = [
    (
        Use("flatten", ("float32[batch, 4]",), {"axis": 0}),
        "flatten cannot join the batch with other dimensions: 'x' is"
        " float32[batch, 4] and axis is 0",
        "axis",
    ),
    (
        Use("flatten", ("float32[batch, 4]",), {"axis": 3}),
        "flatten has axis 3, its operand has 2 dimensions",
        "axis",
    ),
    (
        Use("tile", ROWS, {"repeats": [2]}),
        "tile needs a repeat count for each dimension of 'x' float32[batch, 4], 1 given",
        "repeats",
    ),
    (
        Use("tile", ROWS, {"repeats": [2, 1]}),
        "tile cannot repeat the batch, axis 0 of 'x' float32[batch, 4]",
        "repeats",
    ),
    (Use("tile", ROWS, {"repeats": [1, 0]}), "tile cannot repeat 0 times", "repeats"),
    (
        Use("transpose", ROWS, {"perm": [0]}),
        "transpose needs each axis of 'x' float32[batch, 4] once, perm is [0]",
        "perm",
    ),
    (
        Use("transpose", ROWS, {"perm": [1, -1]}),
        "transpose needs each axis of 'x' float32[batch, 4] once, perm is [1, -1]",
        "perm",
    ),
    (
        Use("squeeze", ROWS, {"axis": 1}),
        "squeeze removes dimensions of 1, axis 1 of 'x' float32[batch, 4] is 4",
        "axis",
    ),
    (
        Use("squeeze", ROWS, {"axis": 0}),
        "squeeze removes dimensions of 1, axis 0 of 'x' float32[batch, 4] is batch",
        "axis",
    ),
    (
        Use("squeeze", ("float32[batch, 1]",), {"axis": [1, -1]}),
        "squeeze names an axis twice: [1, -1]",
        "axis",
    ),
    (
        Use("expand_dims", ROWS, {"axis": 3}),
        "expand_dims has axis 3, its result has 3 dimensions",
        "axis",
    ),
    (
        Use("split", ROWS, {"sections": 2, "axis": 0}),
        "split cannot cut the batch, axis 0 of 'x' float32[batch, 4]",
        "axis",
    ),
    (
        Use("split", ROWS, {"sections": 3}),
        "split cannot make 3 equal parts of axis 1 of 'x' float32[batch, 4]",
        "sections",
    ),
    (
        Use("split", ROWS, {"sections": [1, 2]}),
        "split cannot make parts of [1, 2] of axis 1 of 'x' float32[batch, 4]",
        "sections",
    ),
    (
        Use("split", ROWS, {"sections": [4, 0]}),
        "split cannot make parts of [4, 0] of axis 1 of 'x' float32[batch, 4]",
        "sections",
    ),
    (Use("split", ROWS, {"sections": 1}), "split needs at least 2 sections", "sections"),
    (
        Use("split", ROWS, {"sections": [4]}),
        "split needs at least 2 sections",
        "sections",
    ),
    (
        Use("slice", ROWS, {"axis": 0, "stop": 2}),
        "slice cannot cut the batch, axis 0 of 'x' float32[batch, 4]",
        "axis",
    ),
    (
        Use("slice", ROWS, {"axis": 1, "stop": 5}),
        "slice has stop 5, axis 1 of 'x' is 4",
        "stop",
    ),
    (
        Use("slice", ROWS, {"axis": 1, "start": -5}),
        "slice has start -5, axis 1 of 'x' is 4",
        "start",
    ),
    (
        Use("slice", ROWS, {"axis": 1, "start": 3, "stop": 1}),
        "slice takes nothing of axis 1 of 'x' float32[batch, 4]",
        "start",
    ),
    (
        Use("slice", ROWS, {"axis": 1, "step": 0}),
        "slice cannot have the step 0",
        "step",
    ),
    (
        Use("slice", ROWS, {"axis": 1, "start": [0, 1]}),
        "slice needs one start for each of 1 axes, not [0, 1]",
        "start",
    ),
    (
        Use("slice", ROWS, {"axis": [1, -1], "start": 1}),
        "slice names an axis twice: [1, -1]",
        "axis",
    ),
    (
        Use("pad", ROWS, {"paddings": [[0, 1]]}),
        "pad needs [before, after] for each dimension of 'x' float32[batch, 4]",
        "paddings",
    ),
    (
        Use("pad", ROWS, {"paddings": [[0, 0], [1]]}),
        "pad needs [before, after] for each dimension of 'x' float32[batch, 4]",
        "paddings",
    ),
    (
        Use("pad", ROWS, {"paddings": [[0, 1], [0, 0]]}),
        "pad cannot add rows to the batch, axis 0 of 'x' float32[batch, 4]",
        "paddings",
    ),
    (
        Use("pad", ROWS, {"paddings": [[0, 0], [-1, 0]]}),
        "pad cannot add -1 elements",
        "paddings",
    ),
    (
        Use("pad", ROWS, {"paddings": [[0, 0], [4, 0]], "mode": "reflect"}),
        "pad can reflect 3 elements of axis 1 of 'x' float32[batch, 4], not 4",
        "paddings",
    ),
    (
        Use("pad", ("float32[batch, 0]",), {"paddings": [[0, 0], [0, 1]], "mode": "edge"}),
        "pad has no edge on axis 1 of 'x' float32[batch, 0]",
        "paddings",
    ),
    (
        Use("pad", ("int32[batch, 4]",), {"paddings": [[0, 0], [0, 1]], "value": 0.5}),
        "pad cannot insert 0.5 in 'x' int32[batch, 4]",
        "value",
    ),
    (
        Use("pad", ("uint8[batch, 4]",), {"paddings": [[0, 0], [0, 1]], "value": -1.0}),
        "pad cannot insert -1.0 in 'x' uint8[batch, 4]",
        "value",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("use", "message", "attr"), INVALID_ATTRS, ids=str)
def test_invalid_attributes(use, message, attr):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert caught.value.attr == attr


@pytest.mark.parametrize("kind", ["flatten", "pad"])
def test_a_scalar_is_not_an_operand(kind):
    use = Use(kind, ("float32[]",), {"paddings": []} if kind == "pad" else {})
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == f"{kind} needs a dimension, 'x' is float32[]"
    assert caught.value.operand == 0


def test_hints():
    def hint(kind: str, **attrs) -> str | None:
        use = Use(kind, ROWS, attrs)
        with pytest.raises(OpError) as caught:
            use.declaration.infer(use.types, use.all_attrs)
        return caught.value.hint

    assert hint("flatten", axis=0) == (
        "keep batch a dimension of its own: axis 1 joins those of a row"
    )
    assert hint("pad", paddings=[[0, 0], [-1, 0]]) == "use slice to remove elements"
    assert hint("pad", paddings=[[1, 1]]) == (
        "write [0, 0] for a dimension that is not padded"
    )
    assert hint("slice", axis=1, stop=[1, 2]) == (
        "write one number, or one for each axis"
    )
