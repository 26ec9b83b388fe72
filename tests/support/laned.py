"""A small model whose training rows are a stream of a Python function, and its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from support.streamed import build_stream

LANES, BATCH, PASS = 6, 12, 48
"""The number of lanes, and the rows of a batch and of a pass: each pass has four steps."""
PART = BATCH // LANES
MOST = 40
"""The largest number of rows of a lane."""

CLICKS = f"""
import time

import numpy as np

import placer

SIZES = (3, 1, 4, 2, 1)


def rows(lane, lanes, mark):
    row = mark["row"] if mark else 0
    log = placer.data_folder() / "log" / str(lane)
    is_other = False
    if lane == 1 and (log.parent / "down").exists():
        raise ConnectionError("the broker is down")
    if lane == 3 and (log.parent / "other").exists():
        try:
            (log.parent / "called").mkdir()
        except FileExistsError:
            is_other = True
    while True:
        is_over = (log.parent / f"over{{lane}}").exists()
        if lane == 1 and row >= 6 and (log.parent / "broken").exists():
            raise ConnectionError("the broker is gone")
        count = min(SIZES[(row + lane) % 5], log.stat().st_size - row)
        if not count:
            if is_over:
                return
            time.sleep(0.01)
        numbers = {MOST} * lane + np.arange(row, row + count)
        x = np.eye({LANES * MOST}, dtype=np.float32)[numbers]
        y = np.ones((count, 1), np.float32) + (is_other and row >= 10)
        yield {{"x": x, "y": y, "key": numbers}}
        row += count
        if row % 3 == 0 and not (log.parent / "unmarked").exists():
            yield placer.Mark({{"row": row}})
"""
"""Row i of lane l is the unit vector `MOST * l + i`. The log of a lane has a byte for each row. With a
file `other`, the second call for lane 3 gives other targets from row 10 on."""


def lanes_spec(workers: int, **changes: Any) -> dict[str, Any]:
    """Return the spec of a linear model: the weights of rows that are trained once are equal, and
    those of other rows are 0."""
    sgd = {"op": "sgd", "learning_rate": 0.1, "place": "/node:ps"}
    stream = {"lanes": LANES, "rows": PASS}
    data = {"source": "python:clicks:rows", "batch": BATCH, "stream": stream}
    return {
        "name": "lanes",
        "nodes": {"worker": {"count": workers}, "ps": {"count": 1}},
        "inputs": {
            "x": f"float32[batch, {LANES * MOST}]",
            "y": "float32[batch, 1]",
        },
        "data": {"train": data},
        "graph": [
            {
                "place": "/node:worker",
                "ops": [
                    {"name": "h", "op": "fc", "in": "x", "size": 1, "bias": False},
                    {"name": "loss", "op": "mean_squared_error", "in": ["h", "y"]},
                ],
            }
        ],
        "parameters": [{"match": "h.w", "init": "zeros"}],
        "train": {"minimize": "loss", "metrics": ["loss"], "optimizer": sgd},
        **changes,
    }


def build_lanes(folder: Path, workers: int, **changes: Any) -> Path:
    (folder / "log").mkdir(parents=True, exist_ok=True)
    (folder / "clicks.py").write_text(CLICKS)
    return build_stream(folder, lanes_spec(workers, **changes), f"w{workers}")


def write_rows(folder: Path, rows: int, *, lanes: range = range(LANES)) -> None:
    """Let each of some lanes have a number of rows."""
    for lane in lanes:
        path = folder / "log" / str(lane)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(b"." * rows)
        temporary.rename(path)


def end_lanes(folder: Path, *, lanes: range = range(LANES)) -> None:
    for lane in lanes:
        (folder / "log" / f"over{lane}").touch()


def check_trained_once(parameters: Path, rows: int, *, decay: float = 1.0) -> None:
    """Check that a run has trained the first rows of each lane once each, and no others.

    With a decay of the learning rate in each step, each row also has its step.
    """
    (weights,) = load_file(parameters).values()
    steps = np.arange(MOST) // PART
    once = 0.1 * decay**steps * 2 / BATCH
    expected = np.zeros((LANES, MOST), np.float32)
    expected[:, :rows] = once[:rows]
    np.testing.assert_allclose(weights.reshape(LANES, MOST), expected, rtol=1e-6)
