"""Devices of a node: found by name, emulated where asked for, and copied between."""

import jax
import numpy as np
import pytest

import placer
from placer import RunError
from placer.memory import aligned
from placer.resources import find
from placer.runtime.program.devices import Devices, named
from placer.runtime.run.process import run_in_threads
from placer.runtime.run.state import Options


def has_gpu() -> bool:
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


def on_gpus(folder):
    """A spec whose workers compute on GPUs, compiled."""
    text = find("specs/two_workers.yaml").read_text(encoding="utf-8")
    text = text.replace("{cpu: 1}", "{gpu: 1}").replace("/cpu", "/gpu")
    spec = folder / "gpus.yaml"
    spec.write_text(text, encoding="utf-8")
    return placer.compile(spec, folder / "build")


@pytest.mark.skipif(
    has_gpu(), reason="this machine has the device that must be missing"
)
def test_a_node_without_its_device_says_which_platforms_it_found(tmp_path):
    plan = on_gpus(tmp_path)
    assert [node.computes for node in plan.nodes] == [("gpu:0",), ("gpu:0",)]
    with pytest.raises(RunError) as caught:
        run_in_threads(tmp_path / "build")
    assert caught.value.message == "there is no gpu:0 here, only cpu"
    assert "--emulate" in caught.value.hint


def test_a_device_that_is_missing_is_emulated_where_that_is_asked_for(tmp_path):
    on_gpus(tmp_path)
    result = run_in_threads(tmp_path / "build", Options(steps=2, emulate=True))
    assert result.steps == 2


@pytest.fixture
def devices():
    cpu = jax.devices("cpu")
    return Devices({"cpu:0": cpu[0], "gpu:0": cpu[1], "gpu:1": cpu[2]})


def test_what_goes_to_a_device_is_a_copy(devices):
    array = aligned.zeros((64,), np.dtype("float32"))
    (found,) = devices.put([array], "gpu:0")
    found.block_until_ready()
    assert found.devices() == {jax.devices("cpu")[1]}
    array[0] = 9
    assert found[0] == 0
    (back,) = devices.take((found,), wait=True)
    assert back.devices() == {jax.devices("cpu")[0]}
    assert np.asarray(back).ctypes.data != found.unsafe_buffer_pointer()


def test_rows_are_split_over_devices_and_the_rest_is_on_each(devices):
    rows, whole = np.arange(8).reshape(4, 2), np.arange(3)
    split, kept = devices.put([rows, whole], "gpu:0-1", rows=1)
    shards = [np.asarray(each.data).tolist() for each in split.addressable_shards]
    assert shards == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert all(each.data.shape == (3,) for each in kept.addressable_shards)


def test_rows_that_cannot_be_split_evenly_are_on_each_device(devices):
    (found,) = devices.put([np.arange(5)], "gpu:0-1", rows=1)
    assert [each.data.shape for each in found.addressable_shards] == [(5,), (5,)]


def test_devices_are_named_one_by_one():
    assert named("gpu:0,2-3") == ("gpu:0", "gpu:2", "gpu:3")
