"""Counts the calls of Python functions and the messages of a step, with and without `--restarts`.

The programs of a build are changed so that each node's main thread counts its calls from one
step to the next. Functions of channels are left out, because a node calls them more often the
longer it waits; the messages that it sends are counted. The least numbers of several steps are
compared, function by function.

    python bench/step_calls.py

The status is 1 where a step makes more calls or messages with `--restarts`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec.structs import replace

import placer
from placer.channel.session import Session
from placer.plan.plan import FILE, read_plan, sha256, to_json, with_digest

SPEC = Path(__file__).parents[1] / "specs" / "digits.yaml"
STEPS = range(20, 60)
"""The steps whose calls are counted; none of them ends an epoch."""
LEFT_OUT = (
    "/placer/channel/",
    "/placer/system/memory/",
    "/placer/system/worker.py",
    "/threading.py",
    "<string>",
)
"""Parts of the paths of files that belong to channels, or wait for other threads."""
MESSAGES = {"transmit", "open_message"}
"""The methods of a session that send a message."""


def count(step: Callable[..., Any], file: Path) -> None:
    """Count the calls of this thread, and write the least number of each function."""
    number = 0
    counts: list[Counter[str]] = []
    sends = {getattr(Session, name).__code__ for name in MESSAGES}

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal number
        if event != "call":
            return
        code = frame.f_code
        if code is step.__code__:
            number += 1
            if number == STEPS.stop:
                sys.setprofile(None)
                names = set().union(*counts)
                least = {name: min(each[name] for each in counts) for name in names}
                file.write_text(json.dumps(least))
                return
            if number in STEPS:
                counts.append(Counter())
        if number not in STEPS:
            return
        if code in sends:
            counts[-1]["message"] += 1
        elif not any(part in code.co_filename for part in LEFT_OUT):
            counts[-1][f"{code.co_filename}:{code.co_qualname}"] += 1

    sys.setprofile(note)


def count_calls(build: Path, folder: Path, **options: Any) -> dict[str, Counter[str]]:
    """Run a build; return the calls and messages of a step of each node."""
    folder.mkdir()
    placer.launch(
        build,
        steps=STEPS.stop + 10,
        return_params=False,
        checkpoint=folder / "kept",
        checkpoint_every="1h",
        **options,
    )
    return {
        file.stem: Counter(json.loads(file.read_text()))
        for file in sorted(folder.glob("*.json"))
    }


def let_count(build: Path) -> None:
    """Let the programs of a build count, and write into the folder of the checkpoints."""
    plan = read_plan(build)
    files = dict(plan.files)
    for name in {node.program for node in plan.nodes}:
        program = build / name
        text = program.read_text() + (
            "\nimport sys\n\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "import step_calls\n\n"
            "step_calls.begin(step)\n"
        )
        program.write_text(text)
        files[name] = sha256(text.encode())
    (build / FILE).write_text(to_json(with_digest(replace(plan, files=files))))


def begin(step: Callable[..., Any]) -> None:
    """Count in the process of a node, from its command line."""
    words = sys.argv
    node = words[words.index("--node") + 1]
    (kept,) = (Path(w.partition("=")[2] or words[i + 1])
               for i, w in enumerate(words) if w.partition("=")[0] == "--checkpoint")  # fmt: skip
    count(step, kept.parent / f"{node.replace(':', '-')}.json")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = folder / "build"
        changes = {"data.train.batch": 8, "train.epochs": 2}
        placer.compile(SPEC, build, overrides=changes)
        let_count(build)
        without = count_calls(build, folder / "without")
        restarts = count_calls(build, folder / "restarts", restarts=3)
    has_more = False
    for node, before in without.items():
        after = restarts[node]
        print(
            f"{node:10} without: {before.total() - before['message']:5} calls,"
            f" {before['message']} messages; with --restarts:"
            f" {after.total() - after['message']:5} calls, {after['message']} messages"
        )
        for more in sorted((after - before).keys()):
            has_more = True
            print(f"  more: {more}: {after[more]} instead of {before[more]}")
    return int(has_more)


if __name__ == "__main__":
    sys.exit(main())
