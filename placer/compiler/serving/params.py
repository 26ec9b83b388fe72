"""Loads the parameters of an exported model."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import jax
from safetensors.flax import load


def load_params(path: str = "params.safetensors") -> dict[str, jax.Array]:
    """Return the parameters of a safetensors file by name.

    Raises ValueError if the file has changed since placer wrote it.
    """
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__", {})
    entries, size = json.dumps(header, separators=(",", ":")).encode(), 4 << 20
    values = memoryview(content)[start:]
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    checksums = "".join(f"{crc32(each):08x}" for each in [memoryview(entries), *chunks])
    if metadata.get("placer.crc32", checksums) != checksums:
        raise ValueError(f"{path} is damaged: its checksums do not match")
    params: dict[str, jax.Array] = load(content)
    return params
