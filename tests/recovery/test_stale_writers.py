"""A process of an earlier attempt cannot add a checkpoint after the next one has chosen."""

from __future__ import annotations

import errno
import fcntl
import re
from collections import Counter

from support.checkpointed import build, run
from support.faulty_runs import small_spec
from support.file_operations import before_operations

from placer.checkpoint.folder import list_checkpoints, locked

OPERATIONS = [
    *(("open", n) for n in (1, 2, 3)),
    *(("write", n) for n in (1, 2, 5, 9)),
    *(("fsync", n) for n in (1, 2, 3)),
    ("rename", 1),
]
"""The file operations of a checkpoint that another process precedes."""
ONE_SERVER = {"worker": {"count": 1}, "ps": {"count": 1}}


def test_a_checkpoint_that_was_removed_while_it_was_written_is_not_committed(
    tmp_path, monkeypatch
):
    """The file system has no locks. While each checkpoint is written, another process begins
    an attempt, each time before another file operation."""

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "saved"
    counts: Counter[str] = Counter()
    chosen: dict[int, list[str]] = {}
    # A node may write its file of a step before the checkpoint of the step before is complete.
    planted = {2 * i + 2: [operation] for i, operation in enumerate(OPERATIONS)}

    def begin_attempt(name, path):
        found = re.match(r"\.step-(\d+)\.\w+\.tmp", path.relative_to(folder).as_posix())
        if found is None:
            return
        step = int(found[1])
        counts[f"{step} {name}"] += 1
        if (name, counts[f"{step} {name}"]) in planted.get(step, ()):
            with locked(folder) as has_locks:
                assert not has_locks
                chosen[step] = [path.name for path, _ in list_checkpoints(folder)]

    with before_operations(folder, begin_attempt):
        run(
            build(tmp_path, small_spec(nodes=ONE_SERVER)),
            checkpoint=folder,
            checkpoint_every=1,
            checkpoint_keep=50,
            steps=24,
        )
    kept = [path.name for path, _ in list_checkpoints(folder)]
    assert kept[0] == "step-000024"
    assert sorted(chosen) == [*planted]
    for step, listed in chosen.items():
        assert {*listed} <= {*kept}
        assert f"step-{step:06d}" not in kept
