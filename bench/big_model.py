"""Compares GPT-2 with dropout, 23 million parameters, in one process of placer and of plain JAX.

    pip install "transformers<5"
    python bench/big_model.py steps
    python bench/big_model.py start

`steps`: a process of placer and one of plain JAX take turns, one step each. The reference is
one `jax.jit` with donated state of the same function with one key, and optax. It has the
same initial values, rows and allocator settings. Prints the medians of both, and of the
ratio of two steps that follow each other.

`start`: the seconds from the start of a process until its first step has ended, for
`placer launch` and for plain JAX. Each side has its own cache of compiled programs: first
an empty one, then what earlier runs have compiled. Plain JAX reads its initial values from
the file of the build.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SPECS = Path(__file__).parent / "specs"
STEP_BYTES = 1 << 29
"""Memory of a step, for the settings of the allocator."""


def make_plain(build: Path) -> Callable[[], float]:
    """Return a function that runs the next step in plain JAX, and returns its loss."""
    from placer.system.memory.allocator import keep_memory

    keep_memory(STEP_BYTES)
    sys.path.insert(0, str(SPECS))
    import gpt2
    import jax
    import jax.numpy as jnp
    import optax
    from safetensors.numpy import load_file

    values = load_file(build / "net.safetensors")
    leaves, structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(gpt2.make))
    names = ["net." + "_".join(key.key for key in path) for path, _ in leaves]
    params = jax.tree.unflatten(structure, [jnp.array(values[name]) for name in names])
    adam = optax.adam(gpt2.RATE)
    state = adam.init(params)

    def loss_of(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        return gpt2.losses(params, tokens, key, training=True).mean()

    def one(params: Any, state: Any, tokens: jax.Array, number: int) -> Any:
        key = jax.random.fold_in(jax.random.key(0), number)
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens, key)
        updates, state = adam.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    compiled = jax.jit(one, donate_argnums=(0, 1))
    (block,) = gpt2.train()
    rows, number = block["tokens"], 0

    def step() -> float:
        nonlocal params, state, number
        begin = number * gpt2.BATCH % gpt2.ROWS
        number += 1
        tokens = rows[begin : begin + gpt2.BATCH]
        params, state, loss = compiled(params, state, tokens, number)
        jax.block_until_ready(params)
        return float(loss)

    return step


def take_turns(side: str, build: Path, steps: int) -> None:
    """Run steps, each after a line from standard input. Print what each of them took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what libraries print
    begin: list[float] = []

    def turn() -> None:
        times = [time.monotonic(), time.process_time()]
        taken = [now - then for now, then in zip(times, begin or times, strict=True)]
        print(json.dumps(taken), file=answers, flush=True)
        sys.stdin.readline()
        begin[:] = time.monotonic(), time.process_time()

    if side == "plain":
        step = make_plain(build)
        step()
        for _ in range(steps):
            turn()
            step()
        turn()
        return
    import placer
    from placer.runtime.training_loop.loop import Training

    run_step = Training._run_step

    def run_in_turn(training: Training, number: int) -> bool:
        if number > 1:  # the first step is a warm-up
            turn()  # includes what placer does between two steps
        return run_step(training, number)

    Training._run_step = run_in_turn  # type: ignore[assignment, method-assign]
    placer.run(build, "worker:0", options=placer.Options(steps=steps + 2))


def compare_steps(build: Path, steps: int) -> None:
    with ExitStack() as stack:
        running = {}
        for side in ("placer", "plain"):
            command = [sys.executable, __file__, side, "--build", str(build)]
            running[side] = stack.enter_context(
                subprocess.Popen(
                    [*command, "--steps", str(steps)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in running.values():
            answer(process)  # it is ready
        taken: dict[str, list[list[float]]] = {side: [] for side in running}
        for _ in range(steps):
            for side, process in running.items():
                order(process)
                taken[side].append(answer(process))
        for process in running.values():
            order(process)
    seconds = {side: [wall for wall, _ in each] for side, each in taken.items()}
    cpu = {side: [used for _, used in each] for side, each in taken.items()}
    print(f"{steps} steps of each, load {os.getloadavg()[0]:.1f}: median (quartiles)")
    for side in running:
        show(f"{side}, ms", [1000 * each for each in seconds[side]])
        show(f"{side}, CPU ms", [1000 * each for each in cpu[side]])
    for name, values in (("ratio", seconds), ("ratio of CPU times", cpu)):
        pairs = zip(values["placer"], values["plain"], strict=True)
        show(name, [ours / theirs for ours, theirs in pairs])


def order(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} ended with {process.wait()}")
    taken: list[float] = json.loads(line)
    return taken


def show(name: str, values: Sequence[float]) -> None:
    low, middle, high = statistics.quantiles(values, n=4)
    print(f"  {name:22}{middle:10.3f} ({low:.3f} to {high:.3f})", flush=True)


def start_plain(build: Path) -> None:
    """Run two steps of plain JAX."""
    step = make_plain(build)
    for number in (1, 2):
        print(f"step {number} loss {step()}", flush=True)


def seconds_to_first_step(
    command: Sequence[str], variables: Mapping[str, str]
) -> float:
    """Start a process; return the seconds until it prints that step 1 has ended."""
    begin, seconds = time.monotonic(), 0.0
    with subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 1 "):
                seconds = time.monotonic() - begin
    if process.returncode or not seconds:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds


def compare_starts(build: Path, rounds: int) -> None:
    python = [sys.executable, "-W", "ignore"]
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        launch = [*python, "-m", "placer", "launch", str(build), "--steps", "2"]
        plain = [*python, __file__, "plain start", "--build", str(build)]
        environments = {
            "placer": {"PLACER_CACHE": str(Path(folder) / "placer")},
            "plain": {
                "JAX_COMPILATION_CACHE_DIR": str(Path(folder) / "plain"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            },
        }
        for number in range(rounds + 1):
            state = "kept" if number else "empty"
            for side, command in (("placer", launch), ("plain", plain)):
                seconds = seconds_to_first_step(command, environments[side])
                taken.setdefault(f"{side}, cache {state}", []).append(seconds)
                print(f"{side}, cache {state}: {seconds:.2f} s", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}, seconds: median (lowest to highest)")
    for name, values in taken.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"  {name:22}{middle:8.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="steps or start")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=Path, help="a build of bench/specs/gpt2.py")
    arguments = parser.parse_args()
    what, build, steps = arguments.what, arguments.build, arguments.steps
    if what in ("placer", "plain"):
        take_turns(what, build, steps)
        return
    if what == "plain start":
        start_plain(build)
        return
    with tempfile.TemporaryDirectory() as folder:
        if build is None:
            build = Path(folder) / "build"
            command = [sys.executable, "-W", "ignore", "-m", "placer", "compile"]
            command += [f"{SPECS / 'gpt2.py'}:build", "--out", str(build)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if what == "steps":
            compare_steps(build, steps)
        else:
            compare_starts(build, arguments.rounds)


if __name__ == "__main__":
    main()
