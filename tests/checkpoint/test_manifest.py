"""A manifest that was changed is refused, and so is a value that is not valid."""

from __future__ import annotations

import json
import re
from functools import reduce
from operator import getitem, setitem

import pytest
from click.testing import CliRunner
from support.checkpoints import remove_digest, rewrite_manifest, write_checkpoint

from placer.checkpoint.choice import candidates, last_good
from placer.checkpoint.manifest import Statistic, StepStatistics, Watched
from placer.checkpoint.manifest_file import read_manifest
from placer.command.checkpoints import checkpoints_command
from placer.errors import CheckpointError


@pytest.fixture
def kept(tmp_path):
    """A checkpoint whose manifest has a value for most fields."""
    sums = {"loss": Statistic("ratio", "float64", (2,), bytes(16))}
    return write_checkpoint(
        tmp_path,
        12,
        1,
        statistics=sums,
        eval={"loss": 0.5, "auc": "nan"},
        best=Watched("loss", "min", 0.5, 10, 1),
        workers={"worker:0": 12},
        ahead=(StepStatistics("worker:0", 13, sums),),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"updates": 12', '"updates": 92'),
        ('"step": 12', '"step": 13'),
        ('"seed": 0', '"seed": 1'),
        ('"version": 2', '"version": 1'),
        ('\n "digest": "', '\n "digest": "0'),
        ('\n "digest": "', '\n "digests": "'),
        ("\n}", ' ,"more": 1\n}'),
    ],
)
def test_a_changed_manifest_is_refused(kept, before, after):
    file = kept / "manifest.json"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    with pytest.raises(
        CheckpointError, match=r"manifest\.json' is damaged: it does not"
    ):
        read_manifest(kept)
    done = CliRunner().invoke(checkpoints_command, [str(kept.parent)])
    assert done.exit_code == 1
    assert "damaged" in done.stdout


def test_a_manifest_without_a_digest_is_read_with_a_warning(kept):
    remove_digest(kept)
    told = "placer 0 wrote it: its numbers, such as those of steps and updates, are not"
    for take in (last_good, lambda path, warn: next(candidates(path, warn))):
        for named in (kept, kept.parent):
            warnings = []
            assert take(named, warnings.append).manifest.digest == ""
            assert [told in each for each in warnings] == [True]
    shown = CliRunner().invoke(
        checkpoints_command, [str(kept.parent)], env={"COLUMNS": "300"}
    )
    assert shown.exit_code == 0
    assert "files verified" in shown.stdout
    assert told in shown.stdout
    one = CliRunner().invoke(checkpoints_command, [str(kept), "--json"])
    assert json.loads(one.stdout)["checkpoints"][0]["verified"] is False


TABLE = {
    "dtype": "float32",
    "dim": 2,
    "rule": None,
    "slots": [],
    "partitions": 2,
    "files": [["ps-0.safetensors", 0, 1]],
}
MACHINE = {"versions": {}, "processor": "", "threads": 1, "devices": {}}
INVALID = [
    ("version", 0, ""),
    ("sequence", -1, ""),
    ("written", 1e308, ""),
    ("seed", 10**400, ""),
    ("machines", {"foo": MACHINE}, ""),
    ("machines/worker:0/threads", 0, ""),
    ("train/rows", -1, ""),
    ("train/settings/source", "nothing:x", ""),
    ("train/digests", {"rows": [1, 2], "columns": {"x": [3]}}, ".columns.x"),
    ("progress/step", 0, ""),
    ("progress/seconds", -1, ""),
    ("progress/eval/auc", "much", ""),
    ("progress/best/mode", "mean", ""),
    ("progress/best/step", 99, ""),
    ("progress/best/since", -1, ""),
    ("progress/workers", {"worker": 1}, ""),
    ("progress/ahead/0/node", "0", ""),
    ("progress/statistics/loss/finalizer", "mean", ""),
    ("progress/statistics/loss/dtype", "key", ""),
    ("progress/statistics/loss/shape", [0, 2**62, 9], ""),
    ("progress/statistics/loss/data", "AAAA", ""),
    ("files", {"x": {"nbytes": 0, "checksums": []}}, ""),
    ("files/ps-0.safetensors/nbytes", -1, ""),
    ("files/ps-0.safetensors/checksums", [], ""),
    ("files/ps-0.safetensors/checksums/0", -1, ""),
    ("parameters/w/dtype", "float", ""),
    ("parameters/w/shape", [1] * 40, ""),
    ("parameters/w/updates", -1, ""),
    ("parameters/w/blocks", [], ""),
    ("parameters/w/blocks/0/start", 1, "parameters.w.blocks[0]"),
    ("parameters/w/blocks/0/file", "ps-9.safetensors", ""),
    ("parameters/w/outer", {"rule": "sgd", "slots": [], "updates": 0}, "parameters.w"),
    ("sparse", {"t": TABLE}, ".t.files"),
]
"""A field, its wrong value, and the field of the message, or what is added to it."""


@pytest.mark.parametrize(
    ("path", "value", "told"), INVALID, ids=[each[0] for each in INVALID]
)
def test_an_invalid_value_is_an_error_that_names_file_and_field(
    kept, path, value, told
):
    *parents, last = (int(k) if k.isdigit() else k for k in path.split("/"))
    rewrite_manifest(
        kept, lambda content: setitem(reduce(getitem, parents, content), last, value)
    )
    with pytest.raises(CheckpointError, match=r"manifest\.json' is damaged: ") as error:
        read_manifest(kept)
    field = re.sub(r"\.(\d+)", r"[\1]", path.replace("/", "."))
    field = told if told[:1].isalpha() else field + told
    assert error.value.message.endswith(f" - at `$.{field}`")
    assert CliRunner().invoke(checkpoints_command, [str(kept)]).exit_code == 1
