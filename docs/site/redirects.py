"""The old addresses of pages, from before they were in folders."""

from __future__ import annotations

from typing import Final

_FOLDERS: Final = {
    "start": ("tutorial", "tutorial-flax"),
    "learn": (
        "asynchronous",
        "choosing-a-mode",
        "layouts",
        "pipelines",
        "places",
        "sparse-tables",
    ),
    "how-to": (
        "checkpoints",
        "features",
        "gpus",
        "jax-models",
        "kubernetes",
        "machines",
        "ray",
        "report",
        "serving",
        "slurm",
        "tracing",
        "training",
    ),
    "reference": ("glossary", "python", "runs", "security", "spec"),
    "about": ("architecture", "channel", "performance"),
}

REDIRECTS: Final = {
    name: f"{folder}/{name}.html"
    for folder, names in _FOLDERS.items()
    for name in names
} | {"ops": "reference/ops/index.html", "without-lockstep": "learn/asynchronous.html"}
"""The new address of each old one, from the root of the site."""
