"""The commands `placer` and `python` of a page whose run is cut short.

`page_commands.py placer WORDS` and `page_commands.py python WORDS` do what these programs
do, except that every training ends after a few steps.
"""

from __future__ import annotations

import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 4
"""The steps of a training that is cut short."""


def main() -> None:
    """Run the command in the arguments."""
    _, program, *words = sys.argv
    if program == "placer":
        from placer.command import main as placer_main

        placer_main(cut(words))
        return
    cut_placer()
    if words[:1] == ["-c"]:
        sys.argv = words
        sys.path.insert(0, "")
        exec(compile(words[1], "-c", "exec"), {"__name__": "__main__"})
    elif words[:1] == ["-m"]:
        sys.argv = words[1:]
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent.resolve()))
        runpy.run_path(words[0], run_name="__main__")


def cut(words: list[str]) -> list[str]:
    """Return the words of a command line whose training ends after a few steps."""
    if words[:1] not in (["train"], ["launch"]):
        return words
    if "--restarts" in words:  # of processes
        i = words.index("--restarts")
        words = words[:i] + words[i + 2 :]
    words = [part for word in words for part in re.split(r"(?<=^--steps)=", word)]
    resumed = words[words.index("--resume") + 1] if "--resume" in words else None
    steps = first_step(resumed) + STEPS
    if "--steps" in words:
        i = words.index("--steps") + 1
        words[i] = str(min(int(words[i]), steps))
    else:
        words += ["--steps", str(steps)]
    here = {
        "--in-process",
        "--hosts",
        "--on",
        "--logs",
        "--restarts",
        "--watch",
        "--single-process",
    }
    if not here & {word.partition("=")[0] for word in words}:
        words.append("--in-process")
    return words


def first_step(resumed: object) -> int:
    """Return the step of the newest checkpoint in a folder, or 0."""
    if resumed is None:
        return 0
    path = Path(str(resumed))
    names = [path.name, *(each.name for each in path.glob("step-*"))]
    found = (re.fullmatch(r"step-(\d+)", name) for name in names)
    return max((int(match[1]) for match in found if match), default=0)


def cut_placer() -> None:
    """Let `placer.train` and `placer.launch` end after a few steps."""
    import placer

    for name, function in cut_functions().items():
        setattr(placer, name, function)


def cut_functions() -> dict[str, Callable[..., Any]]:
    """Return `placer.train` and `placer.launch`, ending after a few steps."""
    import placer

    return {name: _cut_function(getattr(placer, name)) for name in ("train", "launch")}


def _cut_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        steps = first_step(options.get("resume")) + STEPS
        options["steps"] = min(options.get("steps") or steps, steps)
        if options.pop("restarts", 0):  # of processes, which `watch` watches
            options.pop("watch", None)
        if not {"hosts", "on", "logs", "watch", "single_process"} & options.keys():
            options["in_process"] = True
        return function(*args, **options)

    return run


if __name__ == "__main__":
    main()
