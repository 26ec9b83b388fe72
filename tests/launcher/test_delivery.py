"""The build and the key that a launcher sends to a node on another machine."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.real_runs import compile_small

from placer.channel.keys import RunKey, new_key
from placer.errors import BuildError, PlacerError
from placer.launcher.delivery import Delivery, read_delivery, unpack, write_delivery
from placer.plan.plan import read_plan, read_sources
from placer.plan.received_builds import MAX_KEPT


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
    assert delivery.secret == key.secret
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


@pytest.mark.parametrize("path", ["../program.py", "/program.py", "other.py"])
def test_a_file_that_is_not_of_the_build_is_refused(build, cache, path):
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    files = {**delivery.files, path: b"import os"}
    with pytest.raises(BuildError):
        unpack(msgspec.structs.replace(delivery, files=files))
    assert not (cache / "program.py").exists()


def test_another_build_than_the_launchers_is_refused(build):
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    with pytest.raises(BuildError, match="is not the one that was sent"):
        unpack(msgspec.structs.replace(delivery, digest="0" * 64))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "does not contain a build"),
        (b"hello\n", "does not contain a build"),
        (b"-1\n", "does not contain a build"),
        (b"2\n{}", "does not contain a build"),
        (b"99999999999\n{}", "does not contain a build"),
        (b"12\n{}", "ended before the end of the build"),
    ],
)
def test_what_is_no_delivery_is_refused(content, what):
    fd = os.memfd_create("delivery")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    with pytest.raises(PlacerError, match=f"standard input {what}"):
        read_delivery(fd)
    os.close(fd)


def test_a_full_disk_says_which_variable_names_another_folder(build):
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    builds = unpack(delivery).parent
    with file_size_limit(0):
        changed = {**delivery.files, "sources.json": b"{}"}
        with pytest.raises(BuildError, match="cannot write") as raised:
            unpack(msgspec.structs.replace(delivery, files=changed))
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("set PLACER_CACHE")
    assert unpack(delivery).parent == builds


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_cache_below_a_folder_of_another_user_is_not_used(
    build, tmp_path, monkeypatch
):
    """Whoever owns it could replace the builds."""
    shared = tmp_path / "shared"
    (shared / "builds").mkdir(parents=True, mode=0o700)
    shared.chmod(0o777)
    monkeypatch.setenv("PLACER_CACHE", str(shared))
    (tmp_path / "file").touch()  # no folder for temporary files either
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    delivery = sent(write_delivery(build, read_plan(build), new_key()))
    with pytest.raises(
        PlacerError, match="found no usable folder for the received build"
    ):
        unpack(delivery)


def test_only_the_last_builds_stay_in_the_cache(build, cache):
    delivery = sent(write_delivery(build, read_plan(build), RunKey(bytes(32))))
    builds = unpack(delivery).parent
    for i in range(2 * MAX_KEPT):
        folder = builds / f"old-{i}"
        folder.mkdir()
        os.utime(folder, (i, i))
    moved = {**delivery.files, "sources.json": b'{"spec": "/a/b.yaml", "ops": {}}'}
    unpack(msgspec.structs.replace(delivery, files=moved))
    left = {each.name for each in builds.iterdir() if each.is_dir()}
    assert len(left) == MAX_KEPT
    assert unpack(delivery).name in left
