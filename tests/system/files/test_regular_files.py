"""Files that a user names must be regular: no pipe is waited for, no device is read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from placer.compiler.frontend import load
from placer.compiler.frontend.yaml.events import MAX_BYTES
from placer.errors import BuildError, DataError, SpecError
from placer.plan.folder import read_file
from placer.plan.plan import read_plan
from placer.plan.settings.data.source import Data
from placer.readers import Column, open_source
from placer.runtime.control.handshake import fingerprint
from placer.runtime.saving import parameter_files
from placer.system.files.regular import TooLargeError, open_regular, read_regular
from placer.system.resources import find_file

DIGITS = find_file("specs/digits.yaml")
SMALL = """\
nodes: {{worker: {{count: 1}}}}
inputs: {{x: "float32[batch, 4]", y: "float32[batch, 1]"}}
data: {{train: {{source: "{source}", batch: 4}}}}
graph:
  - {{name: h, op: fc, in: x, size: 1}}
  - {{name: loss, op: mean_squared_error, in: [h, y]}}
{more}
train:
  minimize: loss
  metrics: [loss]
  optimizer: {{op: sgd, learning_rate: 0.1}}
"""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Make a read that blocks for ever fail the test."""

    def raise_timeout(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return make


NOT_REGULAR = "it is not a regular file"


def test_a_spec_must_be_a_regular_file(pipe: Callable[[str], Path]) -> None:
    for path in (pipe("spec.yaml"), Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(SpecError) as caught:
            load(path)
        assert caught.value.message == f"cannot read {path}: {NOT_REGULAR}"


def test_a_spec_may_be_a_pipe_of_this_process() -> None:
    reads, writes = os.pipe()
    os.write(writes, DIGITS.read_bytes())
    os.close(writes)
    assert load(f"/dev/fd/{reads}").graph.name == load(DIGITS).graph.name
    os.close(reads)


def test_a_pipe_is_read_up_to_the_limit_of_a_spec() -> None:
    zero = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(SpecError, match="over 4 MB: too big for a spec"):
        load(f"/dev/fd/{zero}")
    at = os.lseek(zero, 0, os.SEEK_CUR)
    os.close(zero)
    assert at <= MAX_BYTES + 1


def test_initial_values_must_be_a_regular_file(
    pipe: Callable[[str], Path], tmp_path: Path
) -> None:
    pipe("begin.safetensors")
    spec = tmp_path / "spec.yaml"
    more = "parameters: [{match: h.w, init: {file: begin.safetensors}}]"
    spec.write_text(SMALL.format(source="npz:rows.npz", more=more))
    with pytest.raises(
        SpecError, match=f"begin.safetensors cannot be read.*: {NOT_REGULAR}"
    ):
        load(spec)


def test_a_module_must_be_a_regular_file(
    pipe: Callable[[str], Path], tmp_path: Path
) -> None:
    pipe("rows.py")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SMALL.format(source="python:rows:train", more=""))
    with pytest.raises(SpecError, match=r"rows\.py is not in the folder of the spec"):
        load(spec)


@pytest.mark.parametrize(
    "name", ["rows.npz", "rows.parquet", "rows.csv", "rows.csv.gz", "rows.tsv"]
)
def test_rows_must_be_a_regular_file(
    name: str, pipe: Callable[[str], Path], tmp_path: Path
) -> None:
    pipe(name)
    kind = {".npz": "npz", ".parquet": "parquet"}.get(Path(name).suffix, "csv")
    with pytest.raises(DataError, match=NOT_REGULAR):
        open_source(Data(f"{kind}:{name}"), [Column("x", "float32", (4,))], tmp_path)


@pytest.mark.parametrize("read", [parameter_files.load, fingerprint])
def test_parameters_must_be_a_regular_file(
    read: Callable[[Path], object], pipe: Callable[[str], Path]
) -> None:
    with pytest.raises(DataError, match=f"cannot be read as parameters: {NOT_REGULAR}"):
        read(pipe("p"))


def test_files_of_a_build_must_be_regular(
    pipe: Callable[[str], Path], tmp_path: Path
) -> None:
    pipe("plan.json")
    with pytest.raises(BuildError, match="not a build folder"):
        read_plan(tmp_path)
    with pytest.raises(BuildError, match="is not a file"):
        read_file(tmp_path, "plan.json")


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(TooLargeError, match="it has more than 4 bytes"):
        read_regular(file, 4)
    with pytest.raises(BuildError, match="it has more than 4 bytes"):
        read_file(tmp_path, "file", limit=4)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    (tmp_path / "link").symlink_to(file)
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link", follow=False)
