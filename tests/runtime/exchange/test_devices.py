"""Devices of a node: found by name, emulated, and copied to and from."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from support.gpu import without_gpu

import placer
from placer import RunError
from placer.runtime.control.options import Options
from placer.runtime.exchange.devices import Devices, find_device
from placer.runtime.process.threads import run_in_threads
from placer.system.memory import aligned
from placer.system.resources import find_file


def compile_for_gpus(folder):
    """Compile a spec whose workers compute on GPUs."""
    text = find_file("specs/two_workers.yaml").read_text(encoding="utf-8")
    text = text.replace("{cpu: 1}", "{gpu: 1}").replace("/cpu", "/gpu")
    spec = folder / "gpus.yaml"
    spec.write_text(text, encoding="utf-8")
    return placer.compile(spec, folder / "build")


@without_gpu
def test_a_missing_device_is_reported_with_the_platforms(tmp_path):
    plan = compile_for_gpus(tmp_path)
    assert [node.computes for node in plan.nodes] == [{"gpu:0": ("gpu:0",)}] * 2
    with pytest.raises(RunError) as caught:
        run_in_threads(tmp_path / "build")
    assert caught.value.message == "this machine has no gpu:0, only cpu"
    assert "--emulate" in caught.value.hint


def test_a_missing_device_is_emulated_on_request(tmp_path):
    compile_for_gpus(tmp_path)
    result = run_in_threads(tmp_path / "build", Options(steps=2, emulate=True))
    assert result.steps == 2


@pytest.fixture
def devices():
    cpu = jax.devices("cpu")
    sets = {"cpu:0": cpu[:1], "gpu:0": cpu[1:2], "gpu:0-1": cpu[1:3]}
    return Devices({name: tuple(devices) for name, devices in sets.items()})


def test_arrays_are_copied_to_a_device(devices):
    array = aligned.zeros((64,), np.dtype("float32"))
    (copied,) = devices.copy_to_devices([array], "gpu:0")
    copied.block_until_ready()
    assert copied.devices() == {jax.devices("cpu")[1]}
    array[0] = 9
    assert copied[0] == 0
    (back,) = devices.copy_to_host((copied,), wait=True)
    assert back.devices() == {jax.devices("cpu")[0]}
    assert np.asarray(back).ctypes.data != copied.unsafe_buffer_pointer()


def test_rows_are_split_over_devices_and_other_arrays_replicated(devices):
    rows, whole = np.arange(8).reshape(4, 2), np.arange(3)
    split, replicated = devices.copy_to_devices([rows, whole], "gpu:0-1", rows=1)
    shards = [np.asarray(each.data).tolist() for each in split.addressable_shards]
    assert shards == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert all(each.data.shape == (3,) for each in replicated.addressable_shards)


def test_rows_that_cannot_be_split_evenly_are_replicated(devices):
    (copied,) = devices.copy_to_devices([np.arange(5)], "gpu:0-1", rows=1)
    assert [each.data.shape for each in copied.addressable_shards] == [(5,), (5,)]


def test_the_plan_lists_devices(tmp_path):
    plan = placer.compile(find_file("specs/cnn_gpus.yaml"), tmp_path)
    (node,) = plan.nodes
    assert node.computes == {"gpu:0-7": tuple(f"gpu:{i}" for i in range(8))}


def test_a_node_starts_without_the_parser_of_places(tmp_path):
    compile_for_gpus(tmp_path)
    code = (
        "import sys, pathlib, placer.tables.dense, placer.tables.device\n"
        "import placer.channel.session\n"
        "import placer.runtime.process.entry_point, placer.runtime.node.warm_up\n"
        "from placer.plan.plan import read_plan\n"
        "assert read_plan(pathlib.Path(sys.argv[1])).nodes\n"
        "assert 'lark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "build"], check=True)


def test_only_processes_that_need_a_gpu_look_for_one(tmp_path):
    compile_for_gpus(tmp_path)
    code = (
        "import sys, pathlib, jax\n"
        "from msgspec.structs import replace\n"
        "from placer.plan.plan import read_plan\n"
        "from placer.runtime.exchange.devices import configure_jax\n"
        "gpu = read_plan(pathlib.Path(sys.argv[1])).nodes[0]\n"
        "cpu = replace(gpu, devices={'cpu': 1}, computes={'cpu:0': ('cpu:0',)})\n"
        "jax.config.update('jax_platforms', None)\n"
        "for nodes, emulate, alone in (\n"
        "    ([cpu], False, False), ([gpu, cpu], False, True), ([cpu], False, True)\n"
        "):\n"
        "    configure_jax(nodes, emulate, alone=alone)\n"
        "    print(jax.config.jax_platforms)\n"
        "jax.config.update('jax_platforms', None)\n"
        "configure_jax([gpu], True, alone=True)\n"
        "print(jax.config.jax_platforms, len(jax.devices()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "build"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n") == ["None", "None", "cpu", "cpu 2", ""]


@pytest.mark.parametrize(
    ("count", "existing"), [(1, "only gpu:0"), (3, "only gpu:0-2")]
)
def test_a_device_with_a_number_that_is_too_high_is_reported(
    count, existing, tmp_path, monkeypatch
):
    plan = compile_for_gpus(tmp_path)
    monkeypatch.setattr(jax, "devices", lambda kind: [object()] * count)
    with pytest.raises(RunError) as caught:
        find_device(plan.nodes[0], "gpu:5")
    assert caught.value.message == f"this machine has no gpu:5, {existing}"
