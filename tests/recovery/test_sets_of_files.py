"""A set of files does not change while a run goes on."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from support.checkpointed import ROWS
from support.faulty_runs import Fault, Run, make_faulty, small_spec

import placer
from placer.runtime.control.events import Step


def write_part(folder, number):
    rng = np.random.default_rng(number)
    x = rng.normal(size=(ROWS // 2, 6)).astype(np.float32)
    np.savez(folder / f"part-{number}.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", [("worker:0",), ("worker:1", "worker:0", "ps:0", "ps:1")]
)
def test_a_file_that_comes_during_a_run_is_not_read_by_a_new_process(tmp_path, killed):
    model = small_spec()
    for part in model["data"].values():
        part["source"] = "npz:part-*.npz"
    for number in (1, 2):
        write_part(tmp_path, number)
    (tmp_path / "set.yaml").write_text(yaml.safe_dump(model))
    placer.compile(tmp_path / "set.yaml", tmp_path / "set")
    faulty = make_faulty(tmp_path / "set")
    whole = faulty.run()
    run = Run()
    faulty.prepare([Fault(killed[0], "step 5, call 2", to=killed)])

    def add(event):
        run.events.append(event)
        if isinstance(event, Step) and event.step == 1:
            write_part(tmp_path, 3)

    run = faulty.go_on(run, watch=add)
    assert len(run.restarts) == 1
    assert (run.params, run.history) == (whole.params, whole.history)
