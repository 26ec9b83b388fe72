"""Checks that `--trace` names the slow part of a step, and that its advice helps.

`slowed` trains a small model in each mode with real processes, and slows one part: the
reader of a worker, an op of a worker or a server, a server (stopped for most of the time),
or the link of a machine (a network namespace, which needs root). It prints the first part
of the longest chain, and fails if it is not the slow part.

`pipeline` trains a spec with microbatches, and follows the advice about their number until
no advice is left. It prints the rows per second of each run, without a trace.

    python bench/slowed_steps.py slowed
    python bench/slowed_steps.py pipeline specs/transformer_pipeline.yaml
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.hosts import hosts  # noqa: E402
from support.real_runs import nodes_by_hand  # noqa: E402
from support.slowed_runs import compile_slowed  # noqa: E402

from placer.channel.keys import new_key, write_key  # noqa: E402
from placer.compiler.build_or_spec import load_build  # noqa: E402
from placer.report.step.facts import StepTime  # noqa: E402
from placer.report.step.step_time import read_step_time  # noqa: E402

PLACER = (sys.executable, "-m", "placer.command")
WIDTH = 20_000
"""Units of a layer, so that its gradient has 320 kB."""
RATE = "20mbit"
STOPPED, RUNNING = 0.03, 0.001
"""Seconds for which a slow server is stopped, and may run, in turns."""
CASES = {
    "sync": ("nothing", "reader", "op", "server op", "server", "link"),
    "async": ("nothing", "reader", "server", "link"),
    "sparse": ("nothing", "reader", "op", "server", "link"),
    "pipeline": ("nothing", "reader", "op", "link"),
}
FIRST = {
    "nothing": r".*",
    "reader": r"reading rows on worker:1",
    "op": r"forward\w* on worker:1",
    "server op": r"forward\w* on ps:0",
    "server": r".* (on|to|from) ps:0.*",
    "link": r".* (from worker:1 to|from .* to worker:1).*",
}


def step_of(build: Path, trace: Path) -> StepTime:
    loaded = load_build(build)
    found = read_step_time(trace, loaded.plan, loaded.graphs[0])
    assert found is not None, trace
    return found


@contextmanager
def stopped_in_turns(process: int) -> Iterator[None]:
    """Stop and continue a process in turns."""
    ended = threading.Event()

    def slow() -> None:
        with suppress(ProcessLookupError):
            while not ended.wait(RUNNING):
                os.kill(process, signal.SIGSTOP)
                ended.wait(STOPPED)
                os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_here(build: Path, trace: Path, *, slow_server: bool) -> None:
    """Train with all nodes on this machine."""
    options = (f"--trace={trace}", "--steps=60", "--trace-steps=20:60")
    with nodes_by_hand(build, *options) as nodes, ExitStack() as exits:
        if slow_server:
            server = nodes["ps:0"].process.pid
            exits.enter_context(stopped_in_turns(server))
        for node in nodes.values():
            done = node.wait()
            assert done.status == 0, done.err


def run_on_two_machines(build: Path, trace: Path) -> None:
    """Train with worker 1 on a machine with a slow link."""
    key = build.parent / "run.key"
    write_key(key, new_key())
    names = [node.name for node in load_build(build).plan.nodes]
    with hosts(("host-a", "host-b")) as (first, second):
        second.limit_rate(RATE)
        places = {name: second if name == "worker:1" else first for name in names}
        listed = ",".join(
            f"{name}={host.ipv4}:{4711 + i}"
            for i, (name, host) in enumerate(places.items())
        )
        processes = [
            host.start(
                *(*PLACER, "run", str(build), "--node", name, "--endpoints", listed),
                *("--key", str(key), "--steps", "20"),
                *("--trace", str(trace), "--trace-steps", "10:20"),
            )
            for name, host in places.items()
        ]
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors


def run_case(mode: str, part: str) -> bool:
    options: dict[str, object] = {}
    if part == "reader":
        options["reader"] = 1
    elif part in ("op", "server op"):
        options["op"] = "ps:0" if part == "server op" else "worker:1"
    elif part == "link":
        options["width"] = WIDTH
    with tempfile.TemporaryDirectory() as folder:
        build = compile_slowed(Path(folder), mode, epochs=20, **options)
        trace = Path(folder) / "trace.json"
        if part == "link":
            run_on_two_machines(build, trace)
        else:
            run_here(build, trace, slow_server=part == "server")
        found = step_of(build, trace)
    first, total = found.parts[0], sum(part.seconds for part in found.parts)
    # Both workers of a pipeline read all rows.
    expected = FIRST[part].replace("1", "[01]") if mode == "pipeline" else FIRST[part]
    is_right = re.fullmatch(expected, first.name) is not None
    share = first.seconds / total
    print(
        f"| {mode} | {part} | {1000 * found.seconds:.1f} | {first.name} | {share:.0%}"
        f" | {'yes' if is_right else 'NO'} |",
        flush=True,
    )
    for advice in found.advice:
        print(f"    {advice}")
    return is_right


def slowed(modes: list[str], parts: list[str]) -> int:
    print("| mode | slow part | step (ms) | first in the chain | share | right |")
    print("| --- | --- | --- | --- | --- | --- |")
    results = [
        run_case(mode, part)
        for mode in modes
        for part in CASES[mode]
        if not parts or part in parts
    ]
    return 0 if all(results) else 1


def pipeline(spec: Path, steps: int) -> None:
    plain: dict[str, object] = {}
    count = None
    tried: set[int | None] = set()
    while count not in tried:
        tried.add(count)
        setting = [] if count is None else ["--set", f"train.microbatches={count}"]
        with tempfile.TemporaryDirectory() as folder:
            plain = _train(spec, Path(folder) / "plain", steps, *setting)
            out, trace = Path(folder) / "traced", Path(folder) / "trace.json"
            window = f"{steps // 2}:{steps}"
            traced = ("--trace", str(trace), "--trace-steps", window)
            _train(spec, out, steps, *setting, *traced)
            found = step_of(out / "build", trace)
        rate = plain["samples_per_second"]
        print(f"microbatches {count or 'as in the spec'}: {rate:,.0f} rows/s")
        print(f"    {found.sentence}")
        for advice in found.advice:
            print(f"    {advice}")
            if match := re.search(r"train.microbatches to (\d+)", advice):
                count = int(match[1])


def _train(spec: Path, out: Path, steps: int, *options: str) -> dict[str, object]:
    command = [*PLACER, "train", str(spec), "--out", str(out), "--quiet", "--json"]
    command += ["--steps", str(steps), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    of_slowed = commands.add_parser("slowed")
    of_slowed.add_argument("--mode", action="append", choices=CASES, default=[])
    of_slowed.add_argument("--part", action="append", choices=FIRST, default=[])
    of_pipeline = commands.add_parser("pipeline")
    of_pipeline.add_argument("spec", type=Path)
    of_pipeline.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    if options.command == "slowed":
        sys.exit(slowed(options.mode or list(CASES), options.part))
    pipeline(options.spec, options.steps)


if __name__ == "__main__":
    main()
