"""Requests for jobs on Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placer.channel.keys import RunKey
from placer.launcher.engines import kubernetes
from placer.launcher.engines.engine import JobFiles, JobRequest, Needs
from placer.place.node_kinds import HETER, NodeId
from placer.plan.plan import Plan, read_plan

IMAGE = "registry.example/placer:1"


def options(**chosen: Any) -> dict[str, Any]:
    """Return the options of Kubernetes: those that are chosen, and defaults. In names,
    `_` stands for `-`."""
    defaults = {option.name: option.default for option in kubernetes.OPTIONS}
    named = {name.replace("_", "-"): value for name, value in chosen.items()}
    assert named.keys() <= defaults.keys()
    return {**defaults, "image": IMAGE, **named}


def request_of(
    plan: Plan,
    files: Mapping[str, bytes],
    *arguments: str,
    name: str | None = None,
    needs: Mapping[str, Needs] | None = None,
    data: Path | None = None,
    saves: bool = False,
    grace: float = 30.0,
    restarts: int = 0,
) -> JobRequest:
    """Return a request for a run, by default with 256 MiB for a node, and a GPU for heter
    nodes."""
    if needs is None:
        needs = {
            node: Needs(256 << 20, int(NodeId(node).kind == HETER))
            for node in plan.processes
        }
    return JobRequest(
        name or plan.name,
        plan,
        files,
        needs,
        arguments,
        data,
        RunKey(bytes(range(32))),
        saves=saves,
        grace=grace,
        restarts=restarts,
        run_id="0123abcd" if restarts else "",
    )


def request_of_build(build: Path, *arguments: str, **more: Any) -> JobRequest:
    """Return a request for a run of a build."""
    plan = read_plan(build)
    files = {
        path.relative_to(build).as_posix(): path.read_bytes()
        for path in build.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return request_of(plan, files, *arguments, **more)


def write_files(files: JobFiles, folder: Path) -> Path:
    """Write the files of a job to a new folder."""
    folder.mkdir(parents=True)
    for path, file in files.items():
        assert isinstance(file.content, str)
        (folder / path).touch(0o600 if file.private else 0o644)
        (folder / path).write_text(file.content)
    return folder


def needs_of(nodes: Sequence[str], memory: int = 1 << 20) -> dict[str, Needs]:
    """Return equal needs of nodes."""
    return dict.fromkeys(nodes, Needs(memory, 0))
