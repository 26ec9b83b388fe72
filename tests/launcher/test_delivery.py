"""The build and the key that a launcher sends to a node on another machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from support.real_runs import compile_small

from placer.build.plan import read_plan, read_sources
from placer.channel.keys import Key, new_key
from placer.errors import BuildError, PlacerError
from placer.launcher.delivery import (
    MAX_KEPT,
    Delivery,
    read_delivery,
    unpack,
    write_delivery,
)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("small"), workers=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PLACER_CACHE", str(folder))
    return folder


def sent(content: bytes) -> Delivery:
    """Read a delivery from a pipe that has more bytes, which are left there."""
    fd = os.memfd_create("delivery")
    try:
        os.write(fd, content + b"orders")
        os.lseek(fd, 0, os.SEEK_SET)
        delivery = read_delivery(fd)
        assert os.read(fd, 100) == b"orders"
        return delivery
    finally:
        os.close(fd)


def test_a_delivered_build_is_the_one_that_was_sent(build, cache):
    key = new_key()
    plan = read_plan(build)
    delivery = sent(write_delivery(build, plan, key))
    folder = unpack(delivery)
    assert folder.is_relative_to(cache)
    assert read_plan(folder) == plan
    assert delivery.key == key
    # Its data are searched where they are on the machine of the launcher.
    assert read_sources(folder).spec == str(
        (build / read_sources(build).spec).resolve()
    )


def test_the_secret_is_not_shown(build):
    key = new_key()
    delivery = sent(write_delivery(build, read_plan(build), key))
    assert key.secret.hex() not in repr(delivery)
    assert key.secret.hex() not in str(delivery)


def test_a_build_is_written_once_and_again_if_it_was_edited(build):
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    folder = unpack(delivery)
    program = folder / "worker-0" / "program.py"
    before = program.stat().st_ino
    assert unpack(delivery) == folder
    assert program.stat().st_ino == before
    program.write_text("import os")
    assert unpack(delivery) == folder
    assert read_plan(folder).digest == delivery.digest


@pytest.mark.parametrize("path", ["../program.py", "/tmp/program.py", "other.py"])
def test_a_file_that_is_not_of_the_build_is_refused(build, cache, path):
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    files = {**delivery.files, path: "import os"}
    with pytest.raises(BuildError):
        unpack(msgspec.structs.replace(delivery, files=files))
    assert not (cache / "program.py").exists()


def test_another_build_than_the_launchers_is_refused(build):
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    with pytest.raises(BuildError, match="is not the one that was sent"):
        unpack(msgspec.structs.replace(delivery, digest="0" * 64))


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"12\n{}", b"-1\n", b"2\n{}", b"99999999999\n{}"]
)
def test_what_is_no_delivery_is_refused(content):
    fd = os.memfd_create("delivery")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    with pytest.raises(PlacerError, match="standard input has no build"):
        read_delivery(fd)
    os.close(fd)


def test_only_the_last_builds_stay_in_the_cache(build, cache):
    delivery = sent(write_delivery(build, read_plan(build), Key(bytes(32))))
    builds = unpack(delivery).parent
    for i in range(2 * MAX_KEPT):
        folder = builds / f"old-{i}"
        folder.mkdir()
        os.utime(folder, (i, i))
    moved = {**delivery.files, "sources.json": '{"spec": "/a/b.yaml", "ops": {}}'}
    unpack(msgspec.structs.replace(delivery, files=moved))
    left = {each.name for each in builds.iterdir() if each.is_dir()}
    assert len(left) == MAX_KEPT
    assert unpack(delivery).name in left
