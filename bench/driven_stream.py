"""Runs a build over a stream of files, and prints its events, a line each: see stream_storm.py.

python bench/driven_stream.py BUILD FOLDER [UNTIL]
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import placer
from placer.runtime.control.events import (
    Event,
    NodeWarning,
    PassBegun,
    Recovered,
    State,
    Step,
)


def drive(build: Path, folder: Path, until: str | None) -> None:
    """Run the stream, and print the events that the storm needs, a line each."""

    def watch(event: Event) -> None:
        known = (State, Step, PassBegun, Recovered, NodeWarning)
        if isinstance(event, known):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            line = {"event": type(event).__name__, **fields}
            print(json.dumps(line, default=str), flush=True)

    kept = folder / "kept"
    with suppress(KeyboardInterrupt):  # the storm stops the run
        placer.launch(
            build,
            watch=watch,
            return_params=False,
            checkpoint=kept,
            resume=kept,
            history=folder / "history.jsonl",
            logs=folder / "logs",
            restarts=10,
            until=until,
        )


if __name__ == "__main__":
    build, folder, *until = sys.argv[1:]
    drive(Path(build), Path(folder), until[0] if until else None)
