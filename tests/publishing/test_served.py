"""A reader has exactly the newest publication, and keeps the one before after an error."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.published import Publisher, rows_of_table

from placer.errors import CheckpointError
from placer.publishing import served as reader
from placer.publishing.code import prepare_code
from placer.publishing.folder import list_publications, remove_old
from placer.publishing.served import (
    PublicationError,
    Table,
    change_table,
    find_keys,
    hash_keys,
    load,
    look_up_rows,
    make_buckets,
)


def rows_of(*keys, value=0.0):
    return {key: (float(key), value, 1.0) for key in keys}


def state_of(served):
    params, tables = served.current()
    return float(params["w"][0]), rows_of_table(tables["t"])


def as_floats(rows):
    return {key: (*map(float, np.float32(row)),) for key, row in rows.items()}


KEYS = st.one_of(
    st.integers(0, 40), st.sampled_from([0, 1, 2**63, 2**64 - 1, 2**32, 2**63 - 1])
)
CHANGES = st.tuples(st.sets(KEYS, max_size=20), st.sets(KEYS, max_size=10))


@given(st.lists(CHANGES, min_size=1, max_size=8), st.sampled_from([1, 1000]))
@settings(deadline=None, max_examples=60)
def test_a_changed_table_is_a_dict_after_the_same_changes(changes, merged):
    """Keys are removed, then rows are written; with and without merges."""
    plain: dict[int, tuple[float, ...]] = {}
    starts, shift = make_buckets(np.empty(0, np.uint64))
    table = Table(np.empty(0, np.uint64), starts, shift, np.empty((0, 2), np.float32))
    before = reader._MERGED
    reader._MERGED = merged
    try:
        for number, (written, removed) in enumerate(changes):
            for key in removed:
                plain.pop(key, None)
            new = {key: (float(key % 97), float(number)) for key in written}
            plain |= new
            kept = table
            of_kept = rows_of_table(table)
            table = change_table(
                table,
                np.array(sorted(removed), np.uint64),
                np.array([*new], np.uint64),
                np.array([*new.values()], np.float32).reshape(-1, 2),
            )
            assert rows_of_table(table) == plain
            assert rows_of_table(kept) == of_kept
    finally:
        reader._MERGED = before


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 100_000])
def test_each_key_of_a_table_is_found_and_no_other(count):
    random = np.random.default_rng(count)
    keys = np.unique(random.integers(0, 2**64, 2 * count, np.uint64))
    own, others = keys[::2], keys[1::2]
    order = np.argsort(hash_keys(own))
    starts, shift = make_buckets(hash_keys(own)[order])
    rows = np.arange(own.size, dtype=np.float64).reshape(-1, 1)
    table = Table(own[order], starts, shift, rows[order])
    assert (find_keys(table, others) == -1).all()
    found = look_up_rows(table, own.reshape(1, -1), lambda absent: 1 / 0)
    np.testing.assert_array_equal(found, rows[None])


def test_a_reader_follows_random_publications(tmp_path):
    """It equals a dict after each of 50 publications, refreshed after some of them."""
    random = np.random.default_rng(4)
    publisher, rows = Publisher(tmp_path / "s"), rows_of(*range(60))
    publisher.publish(rows)
    served = load(tmp_path / "s")
    for number in range(2, 51):
        removed = {*random.choice(100, random.integers(0, 6), replace=False).tolist()}
        removed &= rows.keys()
        written = random.choice(100, random.integers(0, 9), replace=False).tolist()
        for key in removed:
            del rows[key]
        changed = rows_of(*written, value=float(number))
        rows |= changed
        is_base = random.random() < 0.1
        removed -= changed.keys()
        publisher.publish(rows if is_base else changed, removed, is_base=is_base)
        if random.random() < 0.2:
            remove_old(tmp_path / "s", keep=1)
        if random.random() < 0.7:
            state = served.refresh()
            assert (state.number, state.step, state.is_new) == (number, 10 * number, 1)
            assert state_of(served) == (number, as_floats(rows))
    assert state_of(load(tmp_path / "s")) == (50, as_floats(rows))


def three(folder):
    """Return a reader of the first of three publications."""
    publisher = Publisher(folder)
    publisher.publish(rows_of(1, 2, 3))
    served = load(folder)
    publisher.publish(rows_of(2, value=5.0), {3})
    publisher.publish(rows_of(4))
    return served


def check_kept(served, match):
    before = served.current()
    with pytest.raises(PublicationError, match=match):
        served.refresh()
    assert served.current() is before


def test_a_gap_is_an_error_until_the_next_base(tmp_path):
    served = three(tmp_path)
    shutil.rmtree(tmp_path / "delta-000002")
    # It begins with the base, whose chain has the gap.
    check_kept(served, "publication 2 is missing: delta-000003 needs it")
    publisher = Publisher(tmp_path)
    publisher.before = list_publications(tmp_path)[-1]
    publisher.publish(rows_of(7, 8), is_base=True)
    assert served.refresh().number == 4
    assert state_of(served) == (4, rows_of(7, 8))


@pytest.mark.parametrize(
    "name", ["t.ps-0.parquet", "t.ps-0.removed.parquet", "params.safetensors"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "grow"])
def test_a_damaged_file_is_found(tmp_path, name, damage):
    served = three(tmp_path)
    path = tmp_path / "delta-000002" / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes(
        content[:-1] if damage == "cut" else content + b"x" * (damage == "grow")
    )
    check_kept(served, "is damaged: its (checksum|size) differs")


def test_a_damaged_manifest_is_found(tmp_path):
    served = three(tmp_path)
    path = tmp_path / "delta-000003" / "manifest.json"
    path.write_text(path.read_text().replace('"step": 30', '"step": 31'))
    check_kept(served, "its digest differs")
    with pytest.raises(CheckpointError, match="its digest differs"):
        list_publications(tmp_path)
    path.write_text("{}")
    check_kept(served, "it has no digest")


def test_files_outside_of_the_folder_are_never_read(tmp_path):
    publisher = Publisher(tmp_path / "s")
    publisher.publish(rows_of(1))
    served = load(tmp_path / "s")
    publisher.publish(rows_of(2))
    path = tmp_path / "s" / "delta-000002" / "manifest.json"
    content = path.read_bytes().replace(b"params.safetensors", b"../../../etc/passw")
    content = content[: content.rindex(b'"digest": "') + 11] + b'"\n}\n'
    digest = reader.sha256(content).hexdigest().encode()
    path.write_bytes(content[:-4] + digest + content[-4:])
    check_kept(served, "names a file outside of its folder")


def test_publications_of_another_model_are_an_error(tmp_path):
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(1))
    served = load(tmp_path)
    publisher.publish(rows_of(2), code="0" * 64)
    check_kept(served, "is of another model than the code")
    with pytest.raises(CheckpointError, match="publications of another model"):
        prepare_code(tmp_path, {"model.py": b"x"}, list_publications(tmp_path))
    (tmp_path / "model.py").write_text("model = 2\n")
    with pytest.raises(PublicationError, match=r"model\.py' is not the published code"):
        load(tmp_path)


def test_another_history_with_the_same_numbers_begins_with_its_base(tmp_path):
    served = three(tmp_path)
    served.refresh()
    for folder in tmp_path.glob("*-00000*"):
        shutil.rmtree(folder)
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(9), id="other-1")
    publisher.publish(rows_of(8), id="other-2")
    publisher.publish(rows_of(7), id="other-3")
    publisher.publish(rows_of(6), id="other-4")
    assert served.refresh().number == 4
    assert state_of(served) == (4, rows_of(9, 8, 7, 6))


def test_a_delta_of_another_history_is_an_error(tmp_path):
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(1))
    served = load(tmp_path)
    publisher.publish(rows_of(2), before_id="other")
    check_kept(served, "delta-000002 does not follow publication 1")


def test_files_that_are_removed_while_they_are_read_lead_to_the_newest_base(
    tmp_path, monkeypatch
):
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(1, 2, 3))
    served = load(tmp_path)
    publisher.publish(rows_of(2, value=5.0), {3})
    opened = reader._open_checked

    def removed_meanwhile(path, stored):
        monkeypatch.setattr(reader, "_open_checked", opened)
        publisher.publish(rows_of(6), is_base=True)
        remove_old(tmp_path, keep=1)
        return opened(path, stored)

    monkeypatch.setattr(reader, "_open_checked", removed_meanwhile)
    assert served.refresh().number == 3
    assert state_of(served) == (3, rows_of(6))


def test_a_step_that_goes_back_is_told(tmp_path):
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(1), step=50)
    served = load(tmp_path)
    publisher.publish(rows_of(2), step=20, is_base=True, newest=1000.0)
    state = served.refresh()
    assert state.went_back
    assert state.age > 1e9
    assert not served.refresh().went_back
    assert served.state.step == 20


def test_a_folder_without_a_publication_is_an_error(tmp_path):
    with pytest.raises(PublicationError, match="no complete code"):
        load(tmp_path)
    prepare_code(tmp_path, {"model.py": b"x"}, [])
    with pytest.raises(PublicationError, match="has no publication"):
        load(tmp_path)


def test_requests_see_one_publication_while_others_are_loaded(tmp_path):
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(*range(100), value=1.0))
    served, ends, seen = load(tmp_path), threading.Event(), set()
    keys = np.arange(100)

    def request():
        while not ends.is_set():
            params, tables = served.current()
            found = look_up_rows(tables["t"], keys, lambda absent: -1.0)[:, 1]
            seen.add((float(params["w"][0]), *np.unique(found).tolist()))

    threads = [threading.Thread(target=request) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(2, 12):
        publisher.publish(rows_of(*range(100), value=float(number)))
        served.refresh()
    ends.set()
    for thread in threads:
        thread.join()
    assert seen <= {(float(number), float(number)) for number in range(1, 12)}


def test_the_reader_imports_only_numpy_and_pyarrow():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(reader.__file__).read_text())
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    standard = {"json", "re", "threading", "time", "collections", "hashlib", "pathlib"}
    standard |= {"typing", "zlib", "__future__", "contextlib", "os", "stat"}
    assert names - standard == {"numpy", "pyarrow", "ml_dtypes"}


def test_a_manifest_of_a_newer_version_is_refused(tmp_path):
    publisher = Publisher(tmp_path)
    publisher.publish(rows_of(1))
    served = load(tmp_path)
    publisher.publish(rows_of(2), version=2)
    check_kept(served, "has version 2 of the format")
    with pytest.raises(CheckpointError, match="has version 2 of the format"):
        list_publications(tmp_path)
    path = tmp_path / "delta-000002" / "manifest.json"
    assert json.loads(path.read_text())["number"] == 2


def test_files_of_a_person_are_not_replaced(tmp_path):
    (tmp_path / "model.py").write_text("mine\n")
    with pytest.raises(CheckpointError, match=r"model\.py. would be replaced"):
        prepare_code(tmp_path, {"model.py": b"x"}, [])
    assert (tmp_path / "model.py").read_text() == "mine\n"
