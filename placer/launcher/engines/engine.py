"""The interface of an engine: its options, its three functions and their data.

`write` returns the files of a job, which a person can read, keep and submit by hand.
`submit` submits a written job to the engine. `watch` follows the job and yields the
events that the launcher would read from local processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from placer.channel.keys import RunKey
from placer.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class EngineOption:
    """An option of an engine, given to `placer launch` as `--option name=value`.

    Attributes:
        name: such as `partition`.
        type: `str`, `int`, `bool`, or `size`, a number of bytes such as 4GiB.
        default: the default value; None if the option is unset by default.
        help: a sentence for the user.
        choices: the allowed texts; empty if any text is allowed.
    """

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that the process of a node needs.

    Attributes:
        memory: bytes of host memory.
        gpus: the number of GPUs.
    """

    memory: int
    gpus: int


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A run that an engine must schedule.

    Attributes:
        name: the name of the job, which is the name of the model.
        plan: the plan of the build.
        files: the content of each file of the build by its path, including plan.json.
        needs: the resources of each process by its name, such as `worker:0`, in the order
            of the plan. The first process has the control node.
        arguments: the arguments of `placer run` after the build and the node, such as
            `--steps=100`.
        data: the data folder on the machines; None for PLACER_DATA there.
        reads: the files that the run reads, on the machines of the job, by option.
        writes: the files that the run writes, on the machines of the job, by option.
        folders: the folders of checkpoints and recorded orders there, by option.
        key: the key of the run.
        saves: True if the run saves checkpoints or parameters when it is interrupted.
        grace: seconds after an interruption until all nodes must stop after the same
            step.
        deadline: seconds that the nodes then have to save.
        run_id: the id of a run with `--restarts`, for the option `--run-id` of its nodes;
            else empty.
        restarts: the value of `--restarts`.
    """

    name: str
    plan: Plan
    files: Mapping[str, bytes]
    needs: Mapping[str, Needs]
    arguments: Sequence[str]
    data: Path | None
    key: RunKey
    reads: Mapping[str, Path] = field(default_factory=dict)
    writes: Mapping[str, Path] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    saves: bool = False
    grace: float = 30.0
    deadline: float = 600.0
    run_id: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job.

    Attributes:
        content: a text, or the bytes of a file of the build.
        private: True if only the owner may read the file, because it contains the key.
        submits: True if the first lines of the file explain how to submit the job by
            hand.
    """

    content: str | bytes
    private: bool = False
    submits: bool = False


JobFiles: TypeAlias = dict[str, JobFile]
"""The files of a job, by their paths in its folder."""


class Job(Protocol):
    """A job that was submitted.

    Attributes:
        title: such as `Slurm job 42`.
        cancel_command: the shell command that ends the job. Empty if it ends with the
            launcher.
        folder: the folder where the nodes write logs such as worker-0.log. None if the
            launcher writes the logs from NodeLog events.
    """

    title: str
    cancel_command: str
    folder: Path | None

    def stop(self) -> None:
        """Ask the nodes to stop after the same step and to save. Any node receives
        SIGUSR1. Unlike SIGINT, this is not an interruption."""

    def cancel(self) -> None:
        """End the job with all its processes."""


@dataclass(frozen=True, slots=True)
class NodeLines:
    """Events that a node has written, as complete lines of JSON without line ends."""

    node: str
    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class NodeLog:
    """New text for the log of a node. Only engines without a shared log folder use it."""

    node: str
    text: bytes


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """The process of a node has ended.

    Attributes:
        node: its name.
        status: its exit status, -N after signal N; None if unknown, for example because
            its machine was lost.
        why: the reason that the engine gives, such as `OOMKilled`.
        host: the machine of the process, if known.
    """

    node: str
    status: int | None
    why: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class JobNote:
    """A message for the user.

    Attributes:
        text: the message, such as the reason why the job waits.
        warns: True for a warning, such as the reason why the engine ended the job.
    """

    text: str
    warns: bool = False


JobEvent: TypeAlias = NodeLines | NodeLog | NodeEnded | JobNote


class Engine(Protocol):
    """The interface of an engine module.

    Attributes:
        OPTIONS: the options of the engine.
        RESTARTS: whether the engine starts nodes again for `--restarts`. May be missing.
    """

    OPTIONS: tuple[EngineOption, ...]

    def write(self, request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
        """Return the files of a job, which depend only on the arguments.

        Args:
            request: the run.
            options: a value for each option in OPTIONS.

        Raises:
            PlacerError: if the engine cannot schedule the run, for example because the
                build is too large.
        """

    def submit(
        self, folder: Path, request: JobRequest, options: Mapping[str, Any]
    ) -> Job:
        """Submit the job whose files are in a folder. Raises PlacerError if the engine
        is missing or refuses the job."""

    def watch(self, job: Any) -> Iterator[JobEvent]:
        """Yield the events of a submitted job until it is over. The last event of each
        node is a NodeEnded. A node without one has ended with the job. Raises
        PlacerError if the job can no longer be followed."""
