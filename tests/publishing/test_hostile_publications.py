"""Publications of another form than those of a run: one clear error, no file outside of the
folder, and no more memory than the files have bytes."""

from __future__ import annotations

import json
import os
import tracemalloc
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from support.published import CODE, Publisher, rows_of_table

from placer.checkpoint.writing import describe_file
from placer.errors import CheckpointError
from placer.publishing.code import prepare_code
from placer.publishing.served import PublicationError, load

ROWS = {5: (1.0, 2.0, 3.0), 6: (4.0, 5.0, 6.0)}
FILES = ["manifest.json", "params.safetensors", "t.ps-0.parquet"]


class Following:
    """A reader of a base, before a delta that a test changes."""

    def __init__(self, folder):
        publisher = Publisher(folder)
        publisher.publish(ROWS)
        self.served = load(folder)
        self.path = publisher.publish({5: (7.0, 8.0, 9.0)}, {6})

    def check_error(self, match):
        before = self.served.current()
        with pytest.raises(PublicationError, match=match):
            self.served.refresh()
        assert self.served.current() is before

    def edit(self, change):
        """Change the manifest as a program could that knows its digest."""
        file = self.path / "manifest.json"
        content = json.loads(file.read_text())
        change(content)
        content.pop("digest", None)
        text = json.dumps(content, indent=1)[:-2] + ',\n "digest": ""\n}\n'
        digest = sha256(text.encode()).hexdigest()
        file.write_text(text[:-4] + digest + text[-4:])

    def put(self, name, content, **table):
        """Replace a file, with its size and checksums in the manifest."""
        (self.path / name).write_bytes(content)
        stored = describe_file([memoryview(content)])
        sizes = {"nbytes": stored.nbytes, "checksums": stored.checksums}

        def change(manifest):
            manifest["files"][name] = sizes
            manifest["tables"]["t"].update(table)

        self.edit(change)


@pytest.fixture
def following(tmp_path):
    return Following(tmp_path / "serving")


def test_a_manifest_that_was_written_again_is_read(following):
    following.edit(lambda manifest: manifest.update(step=77))
    assert following.served.refresh().step == 77
    (table,) = following.served.current()[1].values()
    assert rows_of_table(table) == {5: (7.0, 8.0, 9.0)}


def table_with(**changes):
    return lambda manifest: manifest["tables"]["t"].update(changes)


def file_with(**changes):
    return lambda manifest: manifest["files"]["t.ps-0.parquet"].update(changes)


def without(field):
    return lambda manifest: manifest.pop(field)


OUTSIDE = "../base-000001/t.ps-0.parquet"
CHANGES = {
    "rows of another folder": table_with(files=[OUTSIDE]),
    "keys of another folder": table_with(removed_files=[OUTSIDE]),
    "a file that is not listed": table_with(files=["t.ps-9.parquet"]),
    "files of another type": lambda manifest: manifest.update(files=[]),
    "tables of another type": lambda manifest: manifest.update(tables=3),
    "no parameters": lambda manifest: manifest["files"].pop("params.safetensors"),
    "a listed file outside": lambda manifest: manifest["files"].update({OUTSIDE: {}}),
    "a size": file_with(nbytes="1"),
    "a negative size": file_with(nbytes=-1),
    "a checksum": file_with(checksums=[None]),
    "dim": table_with(dim=2.5),
    "rows": table_with(rows=-1),
    "a dtype": table_with(dtype="object"),
    "true": lambda manifest: manifest.update(step=True),
    "a time": lambda manifest: manifest.update(newest="now"),
    "a base": lambda manifest: manifest.update(base=0),
    "a base of later": lambda manifest: manifest.update(base=3),
    **{f"without {name}": without(name) for name in ("files", "tables", "step")},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_field_of_another_form_is_an_error(change, following):
    following.edit(change)
    following.check_error(r"manifest.json' is damaged: ")


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff", b"[]"])
def test_a_manifest_that_is_not_an_object_is_an_error(content, following):
    text = content + b',\n "digest": ""\n}\n'
    digest = sha256(text).hexdigest().encode()
    path = following.path / "manifest.json"
    path.write_bytes(text[:-4] + digest + text[-4:])
    following.check_error(r"manifest.json' is damaged: ")


def parquet_of(count, dim=3, keys="int64", **options):
    row = pa.list_(pa.field("element", pa.float32(), nullable=False), dim)
    values = pa.array(np.zeros(count * dim, np.float32))
    table = pa.table(
        {
            "key": pa.array(np.zeros(count, np.int64)).cast(keys),
            "row": pa.FixedSizeListArray.from_arrays(values, type=row),
        }
    )
    return bytes_of(table, **options)


def bytes_of(table, **options):
    sink = pa.BufferOutputStream()
    options = {"compression": "none", "use_dictionary": False} | options
    pyarrow.parquet.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


CONTENTS = {
    "a dictionary": (parquet_of(300_000, use_dictionary=True), "no bytes for 300000"),
    "compressed": (parquet_of(1, compression="zstd"), "a file is compressed"),
    "another length": (parquet_of(1, dim=2), "rows of a file have another type"),
    "other keys": (parquet_of(1, keys="float64"), "keys of a file have another type"),
    "other columns": (bytes_of(pa.table({"key": [1]})), "a file has other columns"),
    "numbers as rows": (bytes_of(pa.table({"key": [1], "row": [1]})), "list_size"),
    "more rows": (parquet_of(2), "it has 2 rows and 1 removed"),
    "a key twice": (parquet_of(2), "a key occurs twice"),
    "not Parquet": (b"PAR1" * 10, "is damaged"),
    "empty": (b"", "is damaged"),
}


@pytest.mark.parametrize(("content", "message"), CONTENTS.values(), ids=CONTENTS)
def test_a_file_of_other_rows_is_an_error(content, message, following):
    following.edit(table_with(files=["t.ps-0.parquet"]))
    rows = 2 if "twice" in message else 1
    following.put("t.ps-0.parquet", content, rows=rows)
    following.check_error(message)


def test_no_memory_is_taken_for_rows_that_are_claimed_only(following):
    """1,000 rows of 12,000 values are 48 MB."""
    content = parquet_of(1_000, dim=12_000, use_dictionary=True)
    assert len(content) < 4 << 20
    following.put("t.ps-0.parquet", content, dim=12_000, rows=1_000)
    tracemalloc.start()
    try:
        following.check_error("no bytes for 1000 rows")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def header_of(**entry):
    text = json.dumps({"w": {"dtype": "F32", "shape": [2]} | entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


HEADERS = {
    "too long": (1 << 40).to_bytes(8, "little"),
    "not JSON": (2).to_bytes(8, "little") + b"{]",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "nested": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "outside": header_of(data_offsets=[0, 80]),
    "before": header_of(data_offsets=[-8, 0]),
    "a large shape": header_of(data_offsets=[0, 8], shape=[1 << 40]),
    "a negative shape": header_of(data_offsets=[0, 8], shape=[-1]),
    "a dtype": header_of(data_offsets=[0, 8], dtype="O"),
    "no offsets": header_of(),
    "three offsets": header_of(data_offsets=[0, 4, 8]),
    "no bytes": b"",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_file_of_parameters_of_another_form_is_an_error(content, following):
    following.put("params.safetensors", content)
    following.check_error("delta-000002' is damaged: ")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_only_regular_files_are_read(kind, name, following):
    file = following.path / name
    content = file.read_bytes()
    file.unlink()
    if kind == "link":
        outside = following.path.parents[1] / "outside"
        outside.write_bytes(content)
        file.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    following.check_error(f"{name}' (cannot be read|is not a regular file)")


@pytest.mark.parametrize("name", FILES)
def test_each_bit_of_a_file_counts(name, following):
    path = following.path / name
    content = path.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 40)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        following.check_error(f"{name}' is damaged")
    path.write_bytes(content)
    assert following.served.refresh().is_new


@pytest.mark.parametrize(
    "content",
    ['{"files": {"../x": ""}}', '{"files": {"/etc/passwd": ""}}', "{}", "[", "[]"],
)
def test_a_list_of_code_of_another_form_is_an_error(content, following):
    folder = following.path.parent
    (folder / "code.json").write_text(content)
    with pytest.raises(PublicationError, match=r"code.json' (is damaged|names a file)"):
        load(folder)


def test_files_of_the_user_are_not_replaced_by_the_code_of_a_model(tmp_path):
    (tmp_path / "model.py").write_bytes(b"mine\n")
    with pytest.raises(CheckpointError, match=r"model.py' would be replaced"):
        prepare_code(tmp_path, CODE, [])
    assert (tmp_path / "model.py").read_bytes() == b"mine\n"
    assert not (tmp_path / "code.json").exists()
    (tmp_path / "model.py").write_bytes(CODE["model.py"])  # as after a kill
    prepare_code(tmp_path, CODE, [])
    prepare_code(tmp_path, CODE | {"served.py": b"newer"}, [])
    assert (tmp_path / "served.py").read_bytes() == b"newer"
