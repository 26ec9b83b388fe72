"""Initial values from files, `init: {file: weights.safetensors}`, and their errors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.initial import compute_values

import placer
from placer.checkpoint.folder import set_best
from placer.command import main
from placer.errors import BuildError, DataError, SpecError, SpecErrors
from placer.plan.settings.training.initializers import Initializer
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving import parameter_files
from placer.tables.initial.weight_file import read_flat_range

pytestmark = pytest.mark.filterwarnings("ignore::placer.SpecWarning")
"""Initial values are compared after steps with a learning rate of 0."""
SPEC = """\
name: begun
nodes: {worker: {count: 1}, ps: {count: 2}}
inputs: {x: "float32[batch, 4]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: h, op: fc, in: x, size: 6}
  - {name: c, op: parameter, shape: [], init: {file: FILE}}
  - {name: y, op: mul, in: [h, c]}
  - {name: loss, op: reduce_mean, in: y}
parameters:
  - {match: "h.w", init: {file: FILE}}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 1.0e-30, place: /node:ps/cpu}
  slicing: {min_block: 4}
"""
WEIGHTS = {
    "h.w": np.arange(1, 25, dtype=np.float64).reshape(4, 6),
    "c": np.array(0.5, np.float32),
    "other": np.arange(3),
}


def write(folder: Path, name: str = "begin.safetensors") -> Path:
    save_file(WEIGHTS, folder / "begin.safetensors")
    np.savez(folder / "rows.npz", x=np.ones((16, 4), np.float32))
    (folder / "begun.yaml").write_text(SPEC.replace("FILE", name))
    return folder / "begun.yaml"


def test_parameters_are_initialized_from_a_file(tmp_path: Path) -> None:
    plan = placer.compile(write(tmp_path), tmp_path / "build")
    assert "begin.safetensors" in plan.files
    blocks = [b for n in plan.nodes for t in n.tables for b in t.blocks]
    assert sum(block.parameter == "h.w" for block in blocks) == 2  # it is sliced
    moved = tmp_path / "elsewhere"
    (tmp_path / "begin.safetensors").unlink()  # the build has a copy
    shutil.move(tmp_path / "build", moved)
    saved = tmp_path / "saved.safetensors"
    (moved / "sources.json").write_text('{"spec": "../begun.yaml", "ops": {}}')
    run_in_threads(moved, Options(steps=1, save_params=saved))
    tensors = load_file(saved)
    np.testing.assert_array_equal(tensors["h.w"], WEIGHTS["h.w"].astype(np.float32))
    assert tensors["c"] == 0.5


def test_an_edited_file_is_rejected(tmp_path: Path) -> None:
    placer.compile(write(tmp_path), tmp_path / "build")
    file = tmp_path / "build" / "begin.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BuildError, match="was changed after it was compiled"):
        run_in_threads(tmp_path / "build", Options(steps=1))


def test_a_block_reads_its_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    whole = np.arange(30).astype(ml_dtypes.bfloat16).reshape(5, 6)
    save_file({"a": np.ones(3, np.float32), "w": whole}, file)

    def read() -> np.ndarray:
        return compute_values(
            Initializer(file=str(file)),
            seed=0,
            name="w",
            shape=(5, 6),
            start=7,
            stop=20,
            dtype="float32",
        )

    values = read()
    np.testing.assert_array_equal(values, np.arange(7, 20, dtype=np.float32))
    # Values after the block are not read.
    size = file.stat().st_size
    content = bytearray(file.read_bytes())
    content[size - 2 * 10 :] = b"\xff" * 20
    file.write_bytes(content)
    np.testing.assert_array_equal(read(), values)


def test_a_wrong_shape_is_reported_when_the_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"w": np.ones((2, 2))}, file)
    with pytest.raises(DataError, match=r"has \[2, 2\] for 'w' of shape \[4\]"):
        compute_values(
            Initializer(file=str(file)),
            seed=0,
            name="w",
            shape=(4,),
            start=0,
            stop=4,
            dtype="float32",
        )


def test_an_invalid_header_is_reported_when_the_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    for text in ("[" * 5000, '{"c":' + "[" * 5000, entry("[1e999]", "[0,4]")):
        file.write_bytes(header(text))
        with pytest.raises(DataError, match=r"w.safetensors cannot be read as safe"):
            read_flat_range(file, "c", (), 0, 1)


def header(text: str) -> bytes:
    """Return a file with this header and some zeros."""
    return len(text).to_bytes(8, "little") + text.encode() + bytes(64)


def entry(shape: str, offsets: str) -> str:
    return f'{{"c": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'


UNREADABLE = "begin.safetensors cannot be read as safetensors"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            None,
            "parameter 'c': begin.safetensors is not in the folder of the spec",
        ),
        (b"", f"{UNREADABLE}.*header too small"),
        (b"\x05" + b"\0" * 7 + b"[1,2]", f"{UNREADABLE}.*invalid type: sequence"),
        (header("[" * 5000), UNREADABLE),
        (header('{"c":' + "[" * 5000), f"{UNREADABLE}.*recursion limit"),
        (header(entry("[1e999]", "[0,4]")), f"{UNREADABLE}.*number out of range"),
        (header(entry("[]", "[0,1e999]")), f"{UNREADABLE}.*number out of range"),
        (header(entry("[]", "[0,Infinity]")), UNREADABLE),
        (header(entry("[-1,-1]", "[0,4]")), f"{UNREADABLE}.*integer `-1`"),
        (header(entry("[99]", "[0,396]")), f"{UNREADABLE}.*not fully covered"),
        (
            header(entry("[0]", "[0,0]").replace("F32", "C64"))[:-64],
            f"{UNREADABLE}: 'c' has the unsupported dtype C64",
        ),
        ({"h.w": WEIGHTS["h.w"]}, "parameter 'c': begin.safetensors has no tensor 'c'"),
        (
            {**WEIGHTS, "h.w": np.ones((6, 4))},
            r"'h.w' in begin.safetensors is float64\[6, 4\], but the parameter is"
            r" float32\[4, 6\]",
        ),
        (
            {**WEIGHTS, "c": np.array(1)},
            r"'c' in begin.safetensors is int64\[\], but the parameter is float32\[\]",
        ),
    ],
)
def test_a_wrong_file_is_reported_at_its_line(
    tmp_path: Path, content: object, message: str
) -> None:
    spec = write(tmp_path)
    file = tmp_path / "begin.safetensors"
    if isinstance(content, dict):
        save_file(content, file)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.unlink()
    with pytest.raises(SpecError) as caught:
        placer.compile(spec, tmp_path / "build")
    assert re.search(message, str(caught.value))
    assert "begun.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../w.safetensors", "/w.safetensors", "kept/.hidden", "kept/", "3.5"]
)
def test_a_file_must_be_in_the_folder_of_the_spec(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        SpecError, match="'file' takes a safetensors file or a checkpoint in the folder"
    ):
        placer.compile(write(tmp_path, name), tmp_path / "build")


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e300], ids=["nan", "inf", "float32"])
def test_values_that_are_not_finite_are_refused_at_their_line(
    tmp_path: Path, bad: float
) -> None:
    """1e300 is infinite in float32. `train.nan: warn` accepts all of them."""
    spec = write(tmp_path)
    values = WEIGHTS["h.w"].copy()
    values[3, 5] = bad
    save_file(WEIGHTS | {"h.w": values}, tmp_path / "begin.safetensors")
    with pytest.raises(DataError) as caught:
        placer.compile(spec, tmp_path / "build")
    assert "begin.safetensors: 'h.w' is not finite" in str(caught.value)
    assert "begun.yaml:6:" in str(caught.value)
    assert "train.nan: warn" in str(caught.value.hint)
    spec.write_text(
        spec.read_text().replace("train:\n  min", "train:\n  nan: warn\n  min")
    )
    placer.compile(spec, tmp_path / "build")


def test_a_file_that_changed_after_it_was_saved_is_refused(tmp_path: Path) -> None:
    spec = write(tmp_path)
    file = tmp_path / "begin.safetensors"
    parameter_files.save(file, WEIGHTS)
    placer.compile(spec, tmp_path / "build")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"begin\.safetensors is damaged: the ch"):
        placer.compile(spec, tmp_path / "other")


def test_files_of_one_name_in_the_build_are_rejected(tmp_path: Path) -> None:
    spec = write(tmp_path, "a/b.safetensors")
    text = spec.read_text().replace("a/b.safetensors", "a-b.safetensors", 1)
    spec.write_text(text)
    (tmp_path / "a").mkdir()
    for name in ("a/b.safetensors", "a-b.safetensors"):
        shutil.copy(tmp_path / "begin.safetensors", tmp_path / name)
    with pytest.raises(
        BuildError, match=r"two files .* in the build: .*a-b.safetensors"
    ):
        placer.compile(spec, tmp_path / "build")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the spec and checkpoints of steps 1 and 2, which have the values of
    `WEIGHTS`: the learning rate changes none of them. The best one is that of step 1."""
    folder = tmp_path_factory.mktemp("trained")
    placer.compile(write(folder), folder / "build")
    kept = folder / "kept"
    run_in_threads(
        folder / "build", Options(steps=2, checkpoint=kept, checkpoint_every="1")
    )
    set_best(kept, kept / "step-000001")
    return folder


@pytest.mark.parametrize("name", ["kept", "kept/best", "kept/step-000002"])
def test_parameters_are_initialized_from_a_checkpoint(
    tmp_path: Path, trained: Path, name: str
) -> None:
    shutil.copytree(trained / "kept", tmp_path / "kept", symlinks=True)
    plan = placer.compile(write(tmp_path, name), tmp_path / "build")
    (copy,) = (file for file in plan.files if file.endswith(".safetensors"))
    assert copy == name.replace("/", "-") + ".safetensors"
    assert load_file(tmp_path / "build" / copy).keys() == {"h.w", "c"}
    shutil.rmtree(tmp_path / "kept")  # the build has a copy
    saved = tmp_path / "saved.safetensors"
    run_in_threads(tmp_path / "build", Options(steps=1, save_params=saved))
    tensors = load_file(saved)
    np.testing.assert_array_equal(tensors["h.w"], WEIGHTS["h.w"].astype(np.float32))
    assert tensors["c"] == 0.5


@pytest.mark.filterwarnings("default::placer.errors.CheckpointWarning")
def test_a_damaged_checkpoint_of_a_folder_is_passed_over(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "kept", tmp_path / "kept", symlinks=True)
    damage(tmp_path / "kept/step-000002")
    command = ["compile", str(write(tmp_path, "kept")), "--out", str(tmp_path / "b")]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    warning = capsys.readouterr().err
    assert warning.startswith("warning: checkpoint '")
    assert "trying an earlier checkpoint" in warning
    with pytest.warns(placer.CheckpointWarning) as compiled:
        placer.compile(write(tmp_path, "kept"), tmp_path / "build")
    model = {"w": np.zeros((4, 6)), "b": np.zeros(6)}
    with pytest.warns(placer.CheckpointWarning) as restored:
        placer.restore(model, tmp_path / "kept", "h")
    assert compiled[0].filename == restored[0].filename == __file__
    with pytest.raises(SpecErrors, match="the checksum of chunk 0 does"):
        placer.compile(write(tmp_path, "kept/step-000002"), tmp_path / "build")


def damage(checkpoint: Path) -> None:
    """Change the last byte of each file with tensors."""
    for file in checkpoint.glob("*.safetensors"):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (("FILE", "missing"), r"parameter 'c': the folder '.*missing' does not exist"),
        (
            ("FILE", "weights.npz"),
            r"parameter 'c': the folder '.*weights.npz' does not exist",
        ),
        (("FILE", "kept/empty"), "'.*kept/empty' has no checkpoints"),
        (("name: c,", "name: k,"), "kept has no tensor 'k'"),
        (("size: 6", "size: 5"), r"'h.w' in kept is float32\[4, 6\], but .*\[4, 5\]"),
    ],
)
def test_a_wrong_checkpoint_is_reported_at_its_line(
    tmp_path: Path, trained: Path, replace: tuple[str, str], message: str
) -> None:
    shutil.copytree(trained / "kept", tmp_path / "kept", symlinks=True)
    (tmp_path / "kept/empty").mkdir()
    text = SPEC.replace(*replace).replace("FILE", "kept")
    if "name: k," in text:
        text = text.replace("[h, c]", "[h, k]")
    write(tmp_path).write_text(text)
    with pytest.raises(SpecError) as caught:
        placer.compile(tmp_path / "begun.yaml", tmp_path / "build")
    assert re.search(message, str(caught.value))
    assert "begun.yaml:" in str(caught.value)
