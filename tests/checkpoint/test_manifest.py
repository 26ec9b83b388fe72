"""A manifest that was changed, or that has a wrong value, is an error that says so."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console
from support.checkpoints import edit_manifest, write_checkpoint

from placer.checkpoint.choice import last_good
from placer.checkpoint.manifest import FILE, Watched
from placer.checkpoint.manifest_file import read_manifest
from placer.checkpoint.reading import Checkpoint
from placer.command.checkpoints import checkpoints_command
from placer.errors import CheckpointError
from placer.report.checkpoint_details import details_view
from placer.report.checkpoints import checkpoint_facts, find_checkpoints, list_view

HALVES = ((0, 100), (100, 200))


@pytest.fixture
def checkpoint(tmp_path):
    best = Watched("accuracy", "max", 0.9, step=10, since=1)
    return write_checkpoint(
        tmp_path, 12, 1, HALVES, eval={"loss": "nan"}, best=best, workers={"ps:0": 3}
    )


def test_a_changed_digit_is_found(checkpoint):
    file = checkpoint / FILE
    text = file.read_text()
    digits = [match.start() for match in re.finditer(r"[0-9]", text)]
    assert len(digits) > 100
    for at in digits:
        changed = "1" if text[at] != "1" else "2"
        file.write_text(text[:at] + changed + text[at + 1 :])
        with pytest.raises(CheckpointError):
            read_manifest(checkpoint)
    file.write_text(text)
    assert read_manifest(checkpoint).parameters["w"].updates == 12


def test_a_manifest_of_version_1_is_read_and_has_no_digest(checkpoint):
    """Checkpoints of older versions of placer can be continued; they say what is not
    checked."""
    text = (checkpoint / FILE).read_text()
    content = json.loads(text) | {"version": 1}
    del content["digest"]
    (checkpoint / FILE).write_text(json.dumps(content))
    warnings = []
    for named in (checkpoint, checkpoint.parent):
        assert last_good(named, warnings.append).folder == checkpoint
    assert len(warnings) == 2
    assert all("has no digest" in each for each in warnings)
    listed = CliRunner().invoke(checkpoints_command, [str(checkpoint.parent)]).stdout
    assert "verified, except for its manifest" in listed
    for wrong in ({"version": 2}, {"digest": json.loads(text)["digest"]}):
        (checkpoint / FILE).write_text(json.dumps(content | wrong))
        with pytest.raises(CheckpointError, match="its digest differs"):
            read_manifest(checkpoint)


def test_a_changed_header_is_found_before_a_tensor_is_read(checkpoint):
    """Two tensors of one size whose names were exchanged."""
    file = checkpoint / "ps-0.safetensors"
    content = file.read_bytes()
    one, other = b'"w.block0":', b'"w.block0/mu":'
    length = 8 + int.from_bytes(content[:8], "little")
    header = content[8:length].replace(one, b"?").replace(other, one)
    file.write_bytes(content[:8] + header.replace(b"?", other) + content[length:])
    with pytest.raises(CheckpointError, match="the checksum of chunk 0 does not match"):
        Checkpoint(checkpoint)


def places_of(value, path=()):
    """Yield the path of each value in a manifest, and of each key of a mapping."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in items:
        yield (*path, key)
        yield from places_of(each, (*path, key))


WRONG = (None, -1, 1 << 70, "foo", {"foo": 1})


def test_wrong_values_in_any_field_are_errors(checkpoint):
    """Any other exception than PlacerError would be a failure."""
    original = json.loads((checkpoint / FILE).read_text())
    tried = refused = 0
    alike = {
        tuple("node" if ":" in str(k) else k for k in place): place
        for place in places_of(original)
    }
    for *parents, last in alike.values():
        for wrong in WRONG:

            def change(content, parents=parents, last=last, wrong=wrong):
                content.clear()
                content.update(json.loads(json.dumps(original)))
                for key in parents:
                    content = content[key]
                content[last] = wrong

            edit_manifest(checkpoint, change)
            tried += 1
            try:
                opened = Checkpoint(checkpoint)
            except CheckpointError as error:
                refused += 1
                if str(checkpoint) not in error.message:
                    raise
            else:
                show(opened.folder)
    assert tried > 300
    assert refused > tried / 2


@pytest.mark.parametrize(
    "parents", [("machines",), ("files",), ("progress", "workers")]
)
@pytest.mark.parametrize("name", ["foo", "worker:x", "../x", "worker:0\n"])
def test_what_is_no_node_is_an_error_that_names_the_field(checkpoint, parents, name):
    def change(content):
        for key in parents:
            content = content[key]
        content[name] = next(iter(content.values()))

    edit_manifest(checkpoint, change)
    field = r"\.".join((r"\$", *parents))
    with pytest.raises(CheckpointError, match=rf"{FILE}' is damaged.*{field}"):
        read_manifest(checkpoint)


def show(checkpoint):
    """Make the texts and the JSON that `placer checkpoints` prints."""
    listed = [*find_checkpoints(checkpoint, verify=False)]
    assert [*list_view(listed, Console(width=200))]
    assert [*details_view(listed[0])]
    msgspec.json.encode(checkpoint_facts(listed[0]))
