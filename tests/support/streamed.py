"""A small model whose training rows are a stream of files, and its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

import placer
from placer.runtime.control.events import Event
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from support.checkpointed import spec

BATCH = 4


def write_file(folder: Path, number: int, rows: int, *, name: str = "") -> Path:
    """Write a file of the stream by a rename, and return its path."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    path = folder / "clicks" / (name or f"day-{number}.npz")
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp.npz")
    np.savez(temporary, x=x, y=(x[:, 0] > 0).astype(np.int32))
    return temporary.rename(path)


def stream_spec(source: str = "npz:clicks/*.npz", **changes: Any) -> dict[str, Any]:
    """Return the spec of the model; without `stream`, it has fixed rows."""
    train = changes.pop("train", {})
    stream = changes.pop("stream", {"files": 1})
    model = spec(train=train, **changes)
    data = {"source": source, "batch": BATCH, "shuffle": True}
    if stream is not None:
        data["stream"] = stream
        del model["train"]["epochs"]
    else:
        model["train"]["epochs"] = 1
    model["data"] = {"train": data}
    return model


def build_stream(folder: Path, model: dict[str, Any], name: str = "b") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(model, sort_keys=False))
    placer.compile(path, folder / name)
    return folder / name


def run_stream(
    build: Path, folder: Path, events: list[Event] | None = None, **options: Any
) -> placer.Result:
    """Run a stream in threads; it continues the checkpoints of `folder` if there are some."""
    kept = folder / "kept"
    options = {"checkpoint": kept, "resume": kept, **options}
    watch = ([] if events is None else events).append
    return run_in_threads(build, Options(**options), watch=watch)
