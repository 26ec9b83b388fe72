"""A run with `--restarts` warns once of the memory of its sparse tables."""

from __future__ import annotations

import numpy as np
import pytest
from support.faulty_runs import Fault, Run, make_faulty
from support.sparse_specs import ROWS, write_sparse_spec

import placer
from placer.errors import RunError
from placer.runtime.control.events import Left, Recovered, State


@pytest.mark.slow
def test_a_server_warns_once_in_all_attempts(tmp_path):
    """It stays in its process while a worker is killed and started again."""
    cpu, item = {"count": 1, "memory": "1MiB"}, {"partitions": 16}
    spec = write_sparse_spec(tmp_path, servers=1, cpu=cpu, item=item)
    rows = dict(np.load(tmp_path / "rows.npz"))
    more = {name: np.tile(rows[name], 200) for name in ("user", "friend", "y")}
    keys = np.arange(ROWS * 200 * 3).reshape(-1, 3)
    np.savez(tmp_path / "rows.npz", items=keys, **more)
    placer.compile(spec, tmp_path / "build", overrides={"train.epochs": 1})
    clicks = make_faulty(tmp_path / "build", checkpoint_every=50, restarts=1)
    clicks.prepare([Fault("worker:1", "step 66, call 2")])
    run = Run()
    with pytest.raises(RunError, match="exceed its memory"):
        clicks.go_on(run)
    full = next(
        i
        for i, each in enumerate(run.events)
        if isinstance(each, Left) and "exceed its memory" in each.message
    )
    run.events = run.events[:full]
    (restart,) = [each for each in run.events if isinstance(each, Recovered)]
    (warning,) = [text for text in run.warnings if "of the limit of" in text]
    assert warning.startswith("ps:0: table i.table: its ")
    states = [each for each in run.events if isinstance(each, State) and each.tables]
    assert {each.node for each in states} == {"ps:0"}
    assert len({each.process for each in states}) == 1
    assert restart.step == 50
    assert [states[i].tables["i.table"].since for i in (0, -1)] == [0, 50]
