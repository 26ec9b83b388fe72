"""Parameters from which a run or a prediction starts: of a file, of a checkpoint, of a
folder of checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

import placer
from placer.errors import CheckpointError, DataError, PlacerError
from placer.plan.settings.training.slicing import Block
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving.start_parameters import open_parameters

STEPS = 3


def build(folder: Path, servers: int = 2, name: str = "h", rate: float = 0.1) -> Path:
    """Compile a model whose parameters are on servers, in blocks; return its build."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 6)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))
    spec = {
        "nodes": {"worker": {"count": 2}, "ps": {"count": servers}},
        "inputs": {"x": "float32[batch, 6]", "y": "int32[batch]"},
        "data": {"train": {"source": "npz:rows.npz", "batch": 4}},
        "graph": [
            {
                "place": "/node:worker",
                "ops": [
                    {"name": name, "op": "fc", "in": "x", "size": 8},
                    {"name": "out", "op": "fc", "in": name, "size": 2},
                    {
                        "name": "loss",
                        "op": "softmax_cross_entropy",
                        "in": ["out", "y"],
                    },
                ],
            }
        ],
        "train": {
            "minimize": "loss",
            "epochs": 10,
            "slicing": {"min_block": 4},
            "optimizer": {"op": "adam", "learning_rate": rate, "place": "/node:ps"},
        },
        "predict": {"outputs": ["out"]},
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(spec))
    placer.compile(folder / "model.yaml", folder / "build")
    return folder / "build"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run with a checkpoint of each step, and its parameters."""
    folder = tmp_path_factory.mktemp("trained")
    options: dict[str, Any] = {"checkpoint_every": 1, "checkpoint_keep": 10}
    run_in_threads(
        build(folder),
        Options(
            steps=STEPS,
            checkpoint=folder / "kept",
            save_params=folder / "params",
            **options,
        ),
    )
    return folder


@pytest.fixture
def kept(trained, tmp_path):
    """A copy of the folder of checkpoints."""
    return shutil.copytree(trained / "kept", tmp_path / "kept", symlinks=True)


def damage(checkpoint: Path, file: str = "ps-1.safetensors") -> None:
    content = bytearray((checkpoint / file).read_bytes())
    content[-1] ^= 1
    (checkpoint / file).write_bytes(content)


def start_and_save(folder: Path, start: Path, servers: int) -> dict[str, np.ndarray]:
    """Return the parameters after a step whose learning rate changes none of them."""
    run_in_threads(
        build(folder, servers, rate=1e-30),
        Options(steps=1, init_params=start, save_params=folder / "saved"),
    )
    return load_file(folder / "saved")


def check_equal(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def test_a_run_of_python_starts_from_a_dict_of_arrays(trained, tmp_path):
    arrays = load_file(trained / "params")
    built, run = build(tmp_path), {"in_process": True, "steps": 1}
    expected = placer.launch(built, **run, init_params=trained / "params").params
    check_equal(placer.launch(built, **run, init_params=arrays).params, expected)
    spec, folder = tmp_path / "model.yaml", tmp_path / "run"
    check_equal(
        placer.train(spec, **run, init_params=arrays, out=folder).params, expected
    )


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (lambda a: {**a, "h.v": a["h.w"]}, {}, "'init_params': the parameters do not fit the model: parameter h.v is not in the model"),
        (lambda a: {**a, "h.w": a["h.w"].T}, {}, "h.w is float32[8, 6], the model has float32[6, 8]\n  hint: use the names"),
        (lambda a: {**a, "h.w": a["h.w"].astype(float)}, {}, "h.w is float64[6, 8], the model has"),
        (lambda a: {**a, "h.w": a["h.w"] * np.nan}, {}, "'init_params': 'h.w' is not finite"),
        (lambda a: {**a, "h.w": "text"}, {}, "'init_params' contains 'h.w': <U4, which is not"),
        (lambda a: [*a.values()], {}, "'init_params' is a list, not a path or a dict of arrays"),
        (lambda a: a, {"hosts": "hosts.yaml"}, "'init_params' is a dict, but the nodes run on other machines"),
        (lambda a: a, {"resume": "."}, "cannot be combined"),
    ],
)  # fmt: skip
def test_a_dict_of_arrays_that_a_run_cannot_start_from(
    change, more, message, trained, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text("worker: a\nps: b\n")
    arrays = change(load_file(trained / "params"))
    with pytest.raises(PlacerError, match=re.escape(message)):
        placer.launch(build(tmp_path), init_params=arrays, **more)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("start", ["params", "kept", "kept/step-000003"])
def test_a_run_starts_from_parameters_with_another_slicing(
    start, servers, trained, tmp_path
):
    got = start_and_save(tmp_path, trained / start, servers)
    check_equal(got, load_file(trained / "params"))


def test_a_run_starts_from_a_linked_checkpoint(kept, trained, tmp_path):
    (kept / "best").symlink_to("step-000003")
    got = start_and_save(tmp_path, kept / "best", 3)
    check_equal(got, load_file(trained / "params"))


@pytest.mark.parametrize("start", ["kept", "kept/step-000003"])
def test_a_checkpoint_predicts_as_the_parameters_of_its_run(start, trained):
    def predicted(params: str) -> np.ndarray:
        found = placer.predict(
            trained / "build", params=trained / params, in_process=True, raw=True
        )
        return found["out"]

    np.testing.assert_array_equal(predicted(start), predicted("params"))


def test_a_damaged_checkpoint_is_refused(kept, tmp_path):
    damage(kept / "step-000003")
    with pytest.raises(CheckpointError, match="the checksum of chunk 0 does") as caught:
        start_and_save(tmp_path, kept / "step-000003", 1)
    assert "name the folder of checkpoints" in caught.value.hint


def test_a_changed_byte_of_a_file_of_parameters_is_found(trained, tmp_path):
    shutil.copy(trained / "params", tmp_path / "params")
    damage(tmp_path, "params")
    with pytest.raises(
        DataError, match="params is damaged: the checksum of chunk 0"
    ) as caught:
        start_and_save(tmp_path, tmp_path / "params", 1)
    assert "save the parameters again" in caught.value.hint


@pytest.mark.parametrize("servers", [1, 2])
def test_the_last_good_checkpoint_of_a_folder_is_taken(
    servers, kept, trained, tmp_path, capsys
):
    """Every node takes the same one, also a node that needs none of the damaged bytes."""
    damage(kept / "step-000003")
    (kept / "step-000002" / "manifest.json").write_text("{")
    got = start_and_save(tmp_path, kept, servers)
    check_equal(got, start_and_save(tmp_path, trained / "kept" / "step-000001", 1))
    err = capsys.readouterr().err
    assert err.count("trying an earlier checkpoint") == 1
    assert (
        "ps-1.safetensors: the checksum of chunk 0 does not match; trying an earlier checkpoint"
        in err
    )
    assert "step-000002/manifest.json' is damaged" in err


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty' has no checkpoints"):
        start_and_save(tmp_path, tmp_path / "empty", 1)


@pytest.mark.parametrize("start", ["params", "kept"])
def test_parameters_of_another_model_are_named(start, trained, tmp_path):
    other = build(tmp_path, name="hid")
    with pytest.raises(DataError) as caught:
        run_in_threads(other, Options(steps=1, init_params=trained / start))
    assert "parameter hid.w is missing" in caught.value.message
    assert "parameter h.w is not in the model; did you mean 'hid.w'?" in (
        caught.value.message
    )


def test_only_the_blocks_are_read_from_a_file(tmp_path):
    """The file is sparse, and larger than any memory."""
    file, size = tmp_path / "p", 1 << 40
    entry = {"dtype": "F32", "shape": [2, size // 8], "data_offsets": [0, size]}
    header = json.dumps({"w": entry}).encode()
    values = np.arange(50, dtype=np.float32)
    start = size // 8 + 10
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)
        stream.seek(8 + len(header) + 4 * start)
        stream.write(values)
    blocks = [Block("w", "w.block1", start, start + 50, (50,))]
    (read,) = open_parameters(file, print, finite=True).read(blocks)
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("nbytes", [4, 60, -4])
def test_a_file_that_is_cut_off_is_refused(nbytes, tmp_path):
    file = tmp_path / "p"
    save_file({"w": np.ones(100, np.float32)}, file)
    file.write_bytes(file.read_bytes()[:nbytes])
    with pytest.raises(DataError, match="p cannot be read as parameters: it"):
        open_parameters(file, print, finite=True)
