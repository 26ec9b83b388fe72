"""Kills the processes of a run over a stream of files, and compares it with an undisturbed one.

Files appear while the run trains and while it waits. One of two kills takes all processes, and the
same command continues the stream; the other takes one node, and the run recovers. The kills come
in turns while the run trains, saves, goes from pass to pass, and waits for a file. At the end,
all arrays of the last checkpoint and the history must have the bits of one command over all files.

    python bench/stream_storm.py FOLDER
    python bench/stream_storm.py FOLDER --kills 40 --seed 1

The status is 1 if they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file
from streams import SPECS, file_of

import placer
from placer.runtime.control.events import WAITING_FOR_FILE

ROWS, BATCH, WINDOW = 40_000, 2048, 16_384
RATE: Final = 0.01
KEYS: Final = {"entry_keys": "entry_keys", "entry_words": "entry_keys"}
"""The keys of arrays that have no row for each key of the table, but one for each key not yet
admitted."""
MOMENTS: Final = ("training", "saving", "between passes", "waiting")


def write_file(folder: Path, number: int) -> None:
    """Add the next file of the stream by a rename."""
    path = folder / "clicks" / f"{number:04}.parquet"
    pq.write_table(file_of(number, ROWS), f"{path}.tmp", row_group_size=10_000)
    os.rename(f"{path}.tmp", path)


def build_model(folder: Path) -> Path:
    """Compile `specs/wide_deep_sparse.yaml` with a stream, and rules that remove keys."""
    (folder / "clicks").mkdir(parents=True)
    spec = yaml.safe_load((SPECS / "wide_deep_sparse.yaml").read_text())
    spec["data"] = {
        "train": {
            "source": "parquet:clicks/*.parquet",
            "batch": BATCH,
            "columns": {"keys": "k*", "numbers": "n*", "click": "click"},
            "shuffle": {"window": WINDOW},
            "stream": {"files": 1},
        }
    }
    vectors = next(op for op in spec["graph"][0]["ops"] if op["name"] == "vectors")
    vectors |= {"admit": {"count": 2}, "forget": {"unseen_steps": 60, "every": "pass"}}
    for optimizer in spec["train"]["optimizer"]:
        optimizer["learning_rate"] = RATE
    (folder / "storm.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    placer.compile(folder / "storm.yaml", folder / "build")
    return folder / "build"


class Command:
    """A process that trains the stream, with its nodes.

    Attributes:
        processes: the number of each node's process.
        states: the last state of each node.
        lines: receives the events as dicts, and None at the end.
    """

    def __init__(self, build: Path, folder: Path, until: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        driven = Path(__file__).with_name("driven_stream.py")
        words = [sys.executable, str(driven), str(build), str(folder)]
        self.errors = (folder / "stderr").open("ab")
        self._process = subprocess.Popen(
            [*words, *([until] if until else [])],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )
        self.processes: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=[self._process.stdout]).start()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def events(self, pause: float) -> Iterator[dict[str, Any]]:
        """Yield events, and an empty dict after each pause without one, until the end."""
        while True:
            try:
                line = self.lines.get(timeout=pause)
            except queue.Empty:
                yield {}
                continue
            if line is None:
                return
            if line["event"] == "State":
                self.states[line["node"]] = line["state"]
                if line["process"]:
                    self.processes[line["node"]] = line["process"]
            yield line

    def kill_all(self) -> None:
        """Kill the launcher and all nodes."""
        for process in (self._process.pid, *self.processes.values()):
            _kill(process)
        self._process.wait()

    def kill(self, node: str) -> None:
        """Kill the process of a node."""
        _kill(self.processes[node])

    def stop(self) -> None:
        """Stop the run as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Check that the command has ended without an error."""
        status = self._process.wait()
        assert status == 0, Path(self.errors.name).read_text()


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


class Storm:
    """Writes files and kills processes until there were enough kills."""

    def __init__(self, folder: Path, kills: int, seed: int) -> None:
        self._folder, self._choose = folder, random.Random(seed)
        self._left = kills
        self.done: Counter[tuple[str, str]] = Counter()
        self.files = 0
        self._next()

    def _next(self) -> None:
        """Plan the next kill."""
        number = sum(self.done.values())
        self._moment = MOMENTS[number % len(MOMENTS)]
        self._target = "all" if number // len(MOMENTS) % 2 else "a node"
        self._after = self._choose.randrange(3, 60)  # steps
        self._steps = 0

    def write(self) -> None:
        """Add one to three files."""
        for _ in range(self._choose.randrange(1, 4)):
            self.files += 1
            write_file(self._folder, self.files)

    def run(self, build: Path) -> None:
        """Run commands until all kills are done and all files are trained."""
        while self._disturb(Command(build, self._folder / "disturbed")):
            pass

    def _disturb(self, command: Command) -> bool:
        """Watch a command. Return True if it was killed, False once it has ended."""
        last, waits, writes_at = -1, False, 0.0
        kept = self._folder / "disturbed" / "kept"
        for event in command.events(0.002 if self._moment == "saving" else 0.05):
            kind = event.get("event")
            if kind == "Recovered":
                last, waits = -1, False
                print(f"    {event['what']}; {event['seconds']:.1f} s", flush=True)
            elif kind == "NodeWarning":
                print(f"    {event['message']}", flush=True)
            elif kind == "PassBegun":
                last, waits = event["first_step"] + event["steps"] - 1, False
            elif kind == "Step":
                self._steps += 1
            elif kind == "State" and event["state"] == WAITING_FOR_FILE and not waits:
                waits, writes_at = True, time.monotonic() + self._choose.random()
            is_over = sum(self.done.values()) == self._left
            if waits and is_over:
                command.stop()
                for _ in command.events(1.0):
                    pass
                command.end()
                return False
            now = (
                self._steps >= self._after
                and {
                    "training": kind == "Step",
                    "saving": kept.is_dir() and any(map(_is_hidden, os.listdir(kept))),
                    "between passes": kind == "Step" and event.get("step") == last,
                    "waiting": waits and time.monotonic() > writes_at,
                }[self._moment]
            )
            if now and not is_over and self._strike(command):
                return True
            is_kept_waiting = self._moment == "waiting" and self._steps >= self._after
            if waits and not is_kept_waiting and time.monotonic() > writes_at:
                waits = False
                self.write()
        command.end()
        raise AssertionError("the run has ended by itself")

    def _strike(self, command: Command) -> bool:
        """Kill; return True if the command must be given again."""
        moment, target = self._moment, self._target
        node = self._choose.choice(sorted(command.processes))
        print(f"  {moment}: kill {'all' if target == 'all' else node}", flush=True)
        self.done[moment, target] += 1
        self._next()
        if moment == "waiting":
            self.write()
        if target == "all":
            command.kill_all()
            return True
        command.kill(node)
        return False


def _is_hidden(name: str) -> bool:
    return name.startswith(".step-")


def result(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return the arrays of the last checkpoint, and the history without its times. The rows of a
    table are in the order of their keys: their order in a file depends on removed rows."""
    last = max((folder / "kept").glob("step-*"))
    arrays = {last.name: b""}
    for path in last.glob("*.safetensors"):
        loaded = load_file(path)
        for name, array in loaded.items():
            before, _, kind = name.rpartition("/")
            keys = loaded.get(f"{before}/{KEYS.get(kind, 'keys')}")
            if path.name.endswith(".rows.safetensors") and keys is not None:
                array = array[np.argsort(keys)]
            arrays[f"{path.name}: {name}"] = array.tobytes()
    lines = [json.loads(line) for line in (folder / "history.jsonl").open()]
    for line in lines:
        line.pop("seconds", None)
        line.pop("waited", None)
    return arrays, lines


def main() -> int:
    """Kill, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    build = build_model(args.folder)
    storm = Storm(args.folder, args.kills, args.seed)
    storm.write()
    begin = time.monotonic()
    storm.run(build)
    print(
        f"{storm.files} files, {args.kills} kills in {time.monotonic() - begin:.0f} s"
    )
    plain = Command(build, args.folder / "plain", "now")
    for _ in plain.events(1.0):
        pass
    plain.end()
    (arrays, history), (expected, lines) = (
        result(args.folder / name) for name in ("disturbed", "plain")
    )
    differ = [n for n in {**arrays, **expected} if arrays.get(n) != expected.get(n)]
    if history != lines:
        differ.append("history")
    kinds = ", ".join(f"{m} ({t}) {n}" for (m, t), n in sorted(storm.done.items()))
    print(f"{kinds}\n{len(lines)} lines, {len(arrays)} arrays of the last checkpoint:")
    print(f"DIFFERENT: {differ}" if differ else "equal")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
