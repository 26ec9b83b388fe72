"""A value of a manifest that does not fit the others is an error that names its field."""

from __future__ import annotations

import re
from functools import reduce
from operator import getitem, setitem

import pytest
from support.checkpoints import edit_manifest, write_checkpoint

from placer.checkpoint.manifest import Statistic, StepStatistics, Watched
from placer.checkpoint.manifest_file import read_manifest
from placer.errors import CheckpointError

TABLE = {
    "dtype": "float32",
    "dim": 2,
    "rule": None,
    "slots": [],
    "partitions": 2,
    "files": [["ps-0.safetensors", 0, 1]],
}
INVALID = [
    ("train/settings/source", "nothing:x", ""),
    ("train/digests", {"rows": [1, 2], "columns": {"x": [3]}}, ".columns.x"),
    ("progress/best/step", 99, ""),
    ("progress/ahead/0/statistics/loss/data", "", ""),
    ("progress/statistics/loss/finalizer", "mean", ""),
    ("progress/statistics/loss/dtype", "key", ""),
    ("progress/statistics/loss/shape", [0, 2**62, 9], ""),
    ("progress/statistics/loss/data", "AAAA", ""),
    ("files/ps-0.safetensors/checksums", [], ""),
    ("files/ps-0.safetensors/checksums/0", -1, ""),
    ("parameters/w/dtype", "float", ""),
    ("parameters/w/shape", [1] * 40, ""),
    ("parameters/w/blocks", [], ""),
    ("parameters/w/blocks/0/start", 1, "parameters.w.blocks[0]"),
    ("parameters/w/blocks/0/file", "ps-9.safetensors", ""),
    ("parameters/w/outer", {"rule": "sgd", "slots": [], "updates": 0}, "parameters.w"),
    ("sparse", {"t": TABLE}, ".t.files"),
    ("sparse", {"t": TABLE | {"dtype": "key"}}, ".t.dtype"),
]
"""A field, a wrong value, and the field of the message, or what is added to it."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    sums = {"loss": Statistic("ratio", "float64", (2,), bytes(16))}
    return write_checkpoint(
        tmp_path_factory.mktemp("checkpoints"),
        12,
        1,
        statistics=sums,
        best=Watched("loss", "min", 0.5, 10, 1),
        ahead=(StepStatistics("worker:0", 13, sums),),
    )


@pytest.mark.parametrize(("path", "value", "told"), INVALID)
def test_a_value_that_does_not_fit_is_an_error_with_its_field(
    checkpoint, path, value, told
):
    file = checkpoint / "manifest.json"
    original = file.read_bytes()
    *parents, last = (int(k) if k.isdigit() else k for k in path.split("/"))
    edit_manifest(
        checkpoint,
        lambda content: setitem(reduce(getitem, parents, content), last, value),
    )
    try:
        with pytest.raises(CheckpointError, match=r"manifest\.json' is damaged: ") as e:
            read_manifest(checkpoint)
    finally:
        file.write_bytes(original)
    field = re.sub(r"\.(\d+)", r"[\1]", path.replace("/", "."))
    field = told if told[:1].isalpha() else field + told
    assert e.value.message.endswith(f" - at `$.{field}`")
