"""A run over a stream whose nodes are killed has the bits of one that is left alone."""

from __future__ import annotations

from support.faulty_runs import Fault, Run, check_undisturbed, make_faulty, small_spec
from support.laned import build_lanes, check_trained_once, write_rows
from support.streamed import build_stream, write_file

from placer.launcher import pauses
from placer.runtime.control.events import (
    WAITING_FOR_FILE,
    WAITING_FOR_ROWS,
    Event,
    PassBegun,
    State,
)
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

ROWS = {1: 22, 2: 14, 3: 17}


def test_nodes_are_killed_in_passes_and_while_they_wait(tmp_path):
    model = small_spec()
    del model["train"]["epochs"]
    model["data"] = {
        "train": {
            "source": "npz:clicks/*.npz",
            "batch": 4,
            "shuffle": True,
            "stream": {"files": 1},
        }
    }
    faulty = make_faulty(build_stream(tmp_path, model), until="day-3.npz")
    for number, rows in ROWS.items():
        write_file(tmp_path, number, rows)
    whole = faulty.run(until="now")
    path = tmp_path / "clicks" / "day-3.npz"
    path.rename(hidden := path.with_name(".day-3"))
    faulty.prepare(
        [
            Fault("worker:1", "step 3, call 2"),
            Fault("worker:0", "step 6, call 1", to=("worker:0", "ps:1")),
            Fault("ps:0", f"state {WAITING_FOR_FILE}"),
        ]
    )
    run, waits = Run(), []

    def watch(event: Event) -> None:
        run.events.append(event)
        if not isinstance(event, State) or event.state != WAITING_FOR_FILE:
            return
        waits.append(event.node)
        # The first wait ends with the failure of ps:0.
        if waits.count("ps:0") and hidden.exists() and "ps:0" in killed():
            hidden.rename(path)

    def killed() -> list[str]:
        return [e.node for e in run.events if type(e).__name__ == "Recovered"]

    faulty.go_on(run, watch=watch)
    check_undisturbed(run, whole, restarts=3)
    begun = [each.number for each in run.events if isinstance(each, PassBegun)]
    assert begun == [1, 2, 3]


def test_nodes_of_a_python_stream_are_killed_in_steps_and_while_they_wait(
    tmp_path, monkeypatch
):
    """The run continues a run of three workers in the middle of a pass. Before its first step, the
    function raises."""
    monkeypatch.setattr(pauses, "FIRST_OUTAGE", 0.1)
    monkeypatch.setenv("PLACER_DATA", str(tmp_path))
    builds, first = [build_lanes(tmp_path, n) for n in (2, 3)], tmp_path / "first"
    write_rows(tmp_path, 17)
    run_in_threads(builds[1], Options(steps=2, checkpoint=first))
    faulty = make_faulty(builds[0], checkpoint_every="epoch", resume=first)
    whole = faulty.run(passes=2)
    check_trained_once(faulty.files / "params", 16)
    write_rows(tmp_path, 12, lanes=range(1, 2))
    faulty.prepare(
        [
            Fault("worker:1", "step 3, call 1"),
            Fault("worker:0", "step 6, call 1", to=("worker:0", "ps:0")),
            Fault("ps:0", f"state {WAITING_FOR_ROWS}"),
            Fault("worker:0", "before save"),
        ]
    )
    run, down = Run(), tmp_path / "log" / "down"
    down.touch()

    def watch(event: Event) -> None:
        run.events.append(event)
        if "restart 1 of 3" in getattr(event, "message", ""):
            down.unlink(missing_ok=True)
        failed = [e.node for e in run.events if type(e).__name__ == "Recovered"]
        if len(failed) == 4 and type(event).__name__ == "Recovered":
            write_rows(tmp_path, 17)

    faulty.go_on(run, watch=watch, passes=2)
    check_undisturbed(run, whole, restarts=5)
    assert "the broker is down" in run.warnings[0]
    assert "all nodes go back after a pause of 0.3 s (restart 1" in run.warnings[0]
    assert "all passes that 'passes' (--passes) allows are trained" in run.warnings[-1]
    begun = [each.number for each in run.events if isinstance(each, PassBegun)]
    assert begun == [1, 2]
