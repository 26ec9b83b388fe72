"""Checks of spare machines: their versions, and errors that name the machine."""

from __future__ import annotations

import sys

from support.free_addresses import eventually

from placer.launcher.spares import SpareChecks

SSH = """\
import json, signal, sys
host = sys.argv[2]
said = sys.stdin.buffer.read(8)
assert said == b"delivery"
if host == "refuses":
    print("no route", file=sys.stderr)
    sys.exit(255)
if host == "fails":
    print("noise\\nerror: spec.yaml:3: no file\\n  hint: put it there", file=sys.stderr)
    sys.exit(1)
if host == "is-silent":
    signal.pause()
jax = {"patch": "0.7.2", "other": "0.8.0"}.get(host, "0.7.1")
print(json.dumps({"Python": "3.11.7", "jax": jax}))
"""


def test_each_spare_machine_has_its_message():
    spares = ["same", "patch", "other", "refuses", "fails"]
    ssh = [sys.executable, "-c", SSH]
    found: dict[str, tuple[str, bool]] = {}

    def is_done() -> bool:
        for host, text, is_unusable in checks.news():
            found[host] = text, is_unusable
        return found.keys() == {*spares[1:]}

    with SpareChecks(ssh, "check", b"delivery", "first", [*spares, "is-silent"]) as (
        checks
    ):
        eventually(is_done, 60)
    assert found["refuses"] == (
        "the spare machine refuses cannot be used: ssh failed: no route",
        True,
    )
    assert found["fails"] == (
        "the spare machine fails cannot be used: spec.yaml:3: no file\n"
        "  hint: put it there",
        True,
    )
    text, is_unusable = found["patch"]
    assert not is_unusable
    assert "different versions of jax: 0.7.1 on first; 0.7.2 on patch" in text
    text, is_unusable = found["other"]
    assert is_unusable
    assert text.startswith("the spare machine other cannot be used: the nodes have ")


def test_without_spare_machines_nothing_is_started():
    with SpareChecks(["/no/ssh"], "check", b"", "first", []) as checks:
        assert [*checks.news()] == []
