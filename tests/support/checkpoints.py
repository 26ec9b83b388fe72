"""Small checkpoints, written as a run writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from placer.checkpoint.manifest import (
    FILE,
    Machine,
    Manifest,
    Progress,
    StoredBlock,
    StoredData,
    StoredLeaf,
    StoredParameter,
    version_of,
)
from placer.checkpoint.manifest_file import digest_of
from placer.checkpoint.writing import commit, temporary_folder, write_tensors
from placer.plan.settings.data.source import Data

ELEMENTS = 200
NODES = ("worker:0", "ps:0", "ps:1")
WRITTEN = 1_700_000_000
"""The time of step 0, in seconds since 1970."""


def edit_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint as a program could that knows its digest."""
    file = checkpoint / FILE
    content = json.loads(file.read_text())
    change(content)
    content["digest"] = digest_of(content)
    file.write_text(json.dumps(content))


def value_of(array: str) -> np.ndarray:
    """Return the values of the parameter `w`, or its slot `mu`."""
    return np.arange(ELEMENTS, dtype=np.float32) + (1000 if array == "mu" else 0)


def write_checkpoint(
    folder: Path,
    step: int,
    sequence: int,
    blocks: Sequence[tuple[int, int]] = ((0, ELEMENTS),),
    *,
    optax: bool = False,
    **progress: Any,
) -> Path:
    """Write a checkpoint of a parameter `w` with a slot `mu`; a block is in the file of
    server 0 or 1 in turn. `progress` are more fields of `Progress`. With `optax`, the
    optimizer also has the array `count`, and values for evaluations."""
    temporary = temporary_folder(folder, step, "0a")
    tensors: dict[str, dict[str, np.ndarray]] = {}
    stored = []
    for i, (start, stop) in enumerate(blocks):
        file, name = f"ps-{i % 2}.safetensors", f"w.block{i}"
        part = slice(start, stop)
        tensors.setdefault(file, {})[name] = value_of("value")[part]
        tensors[file][f"{name}/mu"] = value_of("mu")[part]
        if optax:
            tensors[file][f"{name}/mu"] = value_of("mu")[part].astype(np.float16)
            tensors[file][f"{name}/averaged"] = -value_of("value")[part]
            if not start:
                tensors[file][f"{name}/count"] = np.array([step, 1, 2], np.int32)
        stored.append(StoredBlock(file, name, start, stop))
    parameter = StoredParameter(
        "float32", (ELEMENTS,), "momentum", ("mu",), step, tuple(stored)
    )
    if optax:
        parameter = structs.replace(
            parameter,
            rule="optax",
            slot_dtypes={"mu": "float16"},
            leaves={"count": StoredLeaf("int32", (3,))},
            averaged=True,
        )
    manifest = Manifest(
        version=version_of({"w": parameter}, None),
        placer="0",
        name="small",
        sequence=sequence,
        build="",
        placement="",
        computation="",
        seed=0,
        train=StoredData(Data("npz:rows.npz", batch=8), 8, None),
        evaluation=None,
        progress=structs.replace(Progress(step, 1, step, 8 * step), **progress),
        parameters={"w": parameter},
        files={f: write_tensors(temporary, f, each) for f, each in tensors.items()},
        machines={
            n: Machine({"jaxlib": "0.9"}, "0a1b", 2, {"cpu:0": "cpu"}) for n in NODES
        },
        written=WRITTEN + step,
    )
    return commit(folder, temporary, manifest)
