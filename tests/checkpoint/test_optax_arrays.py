"""Checkpoints contain the arrays of an optax optimizer: slots with dtypes of their own,
arrays of whole parameters, and values for evaluations."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from support.checkpoints import ELEMENTS, edit_manifest, value_of, write_checkpoint

from placer.checkpoint.finite import find_nan, find_not_finite
from placer.checkpoint.manifest import AVERAGED, VALUES
from placer.checkpoint.manifest_file import read_manifest
from placer.checkpoint.reading import Checkpoint
from placer.command.checkpoints import checkpoints_command
from placer.errors import CheckpointError

CUTS = ((0, 70), (70, 150), (150, ELEMENTS))


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path, 7, 1, CUTS, optax=True)


def read(checkpoint, array, start, stop, dtype):
    out, opened = np.empty(stop - start, dtype), Checkpoint(checkpoint)
    opened.read([*opened.wanted("w", array, start, out.view(np.uint8).data)])
    return out


def test_each_array_is_read_with_its_own_dtype(checkpoint):
    mu = read(checkpoint, "mu", 60, 160, np.float16)
    np.testing.assert_array_equal(mu, value_of("mu")[60:160].astype(np.float16))
    values = read(checkpoint, VALUES, 60, 160, np.float32)
    np.testing.assert_array_equal(values, value_of("value")[60:160])
    averaged = read(checkpoint, AVERAGED, 60, 160, np.float32)
    np.testing.assert_array_equal(averaged, -value_of("value")[60:160])
    np.testing.assert_array_equal(read(checkpoint, "count", 0, 3, np.int32), [7, 1, 2])


def test_whole_parameters_are_the_values_for_evaluations(checkpoint, tmp_path):
    whole = np.frombuffer(Checkpoint(checkpoint).read_whole("w"), np.float32)
    np.testing.assert_array_equal(whole, -value_of("value"))
    plain = write_checkpoint(tmp_path, 8, 2, CUTS)
    whole = np.frombuffer(Checkpoint(plain).read_whole("w"), np.float32)
    np.testing.assert_array_equal(whole, value_of("value"))


def test_only_a_checkpoint_with_such_arrays_has_version_3(checkpoint, tmp_path):
    assert read_manifest(checkpoint).version == 3
    assert read_manifest(write_checkpoint(tmp_path, 8, 2)).version == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w["leaves"].update(count={"dtype": "int32", "shape": [4]}), "count"),
        (lambda w: w["leaves"].update(rest={"dtype": "int32", "shape": []}), "rest"),
        (lambda w: w["slot_dtypes"].update(mu="float32"), "mu"),
    ],
)
def test_an_array_that_is_missing_or_has_another_type_is_damage(
    checkpoint, change, message
):
    edit_manifest(checkpoint, lambda content: change(content["parameters"]["w"]))
    with pytest.raises(CheckpointError, match=f"it does not contain {message} of w"):
        Checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"slot_dtypes": {"nu": "float32"}}, "slot_dtypes"),
        ({"slot_dtypes": {"mu": "key"}}, "slot_dtypes.mu.dtype"),
        ({"leaves": {"mu": {"dtype": "int32", "shape": []}}}, "leaves.mu"),
        ({"leaves": {"old": {"dtype": "int32", "shape": []}}}, "leaves.old"),
        ({"leaves": {"n": {"dtype": "int", "shape": []}}}, "leaves.n.dtype"),
    ],
)
def test_a_manifest_that_contradicts_itself_names_the_field(checkpoint, change, path):
    edit_manifest(checkpoint, lambda content: content["parameters"]["w"].update(change))
    with pytest.raises(CheckpointError, match=rf"at `\$\.parameters\.w\.{path}`"):
        read_manifest(checkpoint)


def test_the_command_lists_all_arrays_and_counts_their_bytes(checkpoint):
    shown = CliRunner().invoke(checkpoints_command, [str(checkpoint)]).stdout
    words = " ".join(shown.split())
    assert "optax (mu, count), with averages" in words
    assert f"{(ELEMENTS * (4 + 4 + 2) + 12) / 1000:.1f} kB" in words


def test_a_state_may_be_infinite_but_not_nan():
    integers = {"count": np.array(3), "key": np.array([1, 2], np.uint32)}
    truth = {"last_finite": np.array(True)}
    assert find_nan(integers | truth) == find_not_finite(integers | truth) == ""
    assert find_nan({"best": np.array(np.inf)}) == ""
    assert find_not_finite({"best": np.array(np.inf)}) == "'best' is not finite"
    assert find_nan({"mu": np.array([0.0, np.nan])}) == "'mu' contains nan"
