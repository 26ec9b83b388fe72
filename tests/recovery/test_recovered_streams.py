"""A run over a stream whose nodes are killed has the bits of one that is left alone."""

from __future__ import annotations

from support.faulty_runs import Fault, Run, check_undisturbed, make_faulty, small_spec
from support.streamed import build_stream, write_file

from placer.runtime.control.events import WAITING_FOR_FILE, Event, PassBegun, State

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
