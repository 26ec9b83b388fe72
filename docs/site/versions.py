"""Writes `switcher.json`, the versions that the menu of the site offers.

A host keeps each version in a folder of its name, such as `0.1.0`, and the newest in
`latest`. When it adds a version, it copies the `switcher.json` of that version to all.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from docs.site.paths import ROOT

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def versions(current: str, tags: list[str]) -> list[dict[str, str]]:
    """Return the entries of the menu: this version, and those of other tags.

    Args:
        current: the version of this site.
        tags: the tags of the repository; those such as `v0.1.0` are versions.
    """
    others = {tag[1:] for tag in tags if tag[:1] == "v" and tag[1:2].isdigit()} - {
        current
    }
    entries = [{"name": f"{current} (latest)", "version": current, "url": "./"}]
    newest_first = sorted(others, key=_numbers, reverse=True)
    return entries + [
        {"name": n, "version": n, "url": f"../{n}/"} for n in newest_first
    ]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None:
        return
    # A checkout without git, such as an archive, has no tags.
    done = subprocess.run(
        ["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = versions(app.config.version, done.stdout.split())
    text = json.dumps(found, indent=2) + "\n"
    (Path(app.outdir) / "switcher.json").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, object]:
    """Write the list after a build."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
