"""An engine that starts the nodes as processes of this machine, as another package could
have it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placer.channel.ports import free_endpoints
from placer.errors import RunError
from placer.launcher.engines.engine import (
    EngineOption,
    JobEvent,
    JobFile,
    JobFiles,
    JobNote,
    JobRequest,
    NodeEnded,
    NodeLines,
    NodeLog,
)
from placer.launcher.engines.tail import Tail
from support.real_runs import placer_command, process_environment

OPTIONS = (
    EngineOption("note", "str", None, "What the job waits for."),
    EngineOption("silent", "bool", False, "Whether the job cannot be followed."),
)


@dataclass
class Here:
    files: Path
    options: Mapping[str, Any]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    title: str = "the job here"
    cancel_command: str = "kill it"
    folder: Path | None = None

    def stop(self) -> None:
        next(iter(self.nodes.values())).send_signal(signal.SIGUSR1)

    def cancel(self) -> None:
        for process in self.nodes.values():
            process.kill()
            process.wait()


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    files = {f"build/{path}": JobFile(data) for path, data in request.files.items()}
    return {**files, "key": JobFile(request.key.secret.hex(), private=True)}


def submit(folder: Path, request: JobRequest, options: Mapping[str, Any]) -> Here:
    if options["note"] == "refused":
        raise RunError("the job was refused")
    job = Here(folder, options)
    endpoints = free_endpoints([*request.needs])
    listed = ",".join(f"{node}={address}" for node, address in endpoints.items())
    for node in request.needs:
        words = ["run", folder / "build", "--node", "auto", *request.arguments]
        words += ["--events", folder / f"{node}.jsonl", "--endpoints", listed]
        with (folder / f"{node}.out").open("wb") as log:
            job.nodes[node] = subprocess.Popen(
                placer_command(*words),
                env={
                    **process_environment(),
                    "PLACER_NODE": node,
                    "PLACER_KEY_FILE": str(folder / "key"),
                },
                stdout=log,
                stderr=log,
            )
    return job


def watch(job: Here) -> Iterator[JobEvent]:
    if note := job.options["note"]:
        yield JobNote(f"waits: {note}", warns=note == "too long")
    tails = {node: Tail(job.files / f"{node}.jsonl") for node in job.nodes}
    left = dict(job.nodes)
    while left:
        for node, process in [*left.items()]:
            status = process.poll()
            if lines := tails[node].read():
                yield NodeLines(node, lines)
            if job.options["silent"] and node == "ps:0" and lines:
                job.cancel()
                raise RunError("nothing is heard of the job")
            if status is not None:
                yield NodeLog(node, (job.files / f"{node}.out").read_bytes())
                yield NodeEnded(node, status, host=os.uname().nodename)
                del left[node]
        time.sleep(0.02)
