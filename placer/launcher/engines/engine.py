"""What an engine is: its options, its three functions, and what they exchange.

`write` gives the files of a job, which a person can read, keep and submit by hand.
`submit` gives a written job to the engine. `watch` follows it: it yields what the
launcher would have read from the processes, had it started them.
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
    """An option of an engine, which `placer launch` takes as `--option name=value`.

    Attributes:
        name: such as `partition`.
        type: `str`, `int`, `bool`, or `size`, a number of bytes such as 4GiB.
        default: None if there is nothing to use instead.
        help: what it does, in one sentence.
        choices: the texts from which the value is chosen.
    """

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Needs:
    """What the process of a node needs.

    Attributes:
        memory: bytes of host memory.
        gpus: the number of GPUs.
    """

    memory: int
    gpus: int


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A run that an engine is to schedule.

    Attributes:
        name: the name of the job: that of the model.
        plan: the plan of the build.
        files: the content of each file of the build by its path, plan.json included.
        needs: what each process needs, by its name such as `worker:0`, in the order of
            the plan; the first is that of the control node.
        arguments: the arguments of `placer run` after the build and the node, such as
            `--steps=100`.
        data: the folder of the data on the machines; None for their PLACER_DATA.
        reads, writes, folders: the files, and the folders of checkpoints and orders, on
            the machines that options name, by the option.
        key: the key of the run.
        saves: whether the run saves checkpoints or parameters when it is interrupted.
        grace, deadline: the seconds that nodes have after an interruption to stop after
            the same step, and to write what they save.
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


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job.

    Attributes:
        content: a text, or the bytes of a file of the build.
        private: whether only its owner may read it: it has the key.
        submits: whether its first lines say how to submit the job by hand.
    """

    content: str | bytes
    private: bool = False
    submits: bool = False


JobFiles: TypeAlias = dict[str, JobFile]
"""The files of a job by their paths in its folder."""


class Job(Protocol):
    """A job that was submitted.

    Attributes:
        title: such as `Slurm job 42`.
        cancel_command: the command that ends it, for a person. Empty if it ends with the
            launcher.
        folder: the folder in which its nodes write `NODE.log`, such as worker-0.log; None
            if the launcher does, with NodeLog.
    """

    title: str
    cancel_command: str
    folder: Path | None

    def stop(self) -> None:
        """Ask the nodes to stop after the same step, and to save, by SIGUSR1 to any of
        them. It is no interruption, of which SIGINT is one."""

    def cancel(self) -> None:
        """End the job with all its processes."""


@dataclass(frozen=True, slots=True)
class NodeLines:
    """Events that a node has written: complete lines of JSON, without their ends."""

    node: str
    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class NodeLog:
    """What a node has added to its log, from an engine that does not write it to
    `NODE.log` in the folder of the job."""

    node: str
    text: bytes


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """The process of a node has ended.

    Attributes:
        node: its name.
        status: its exit status, -N after signal N; None if it is not known, as when its
            machine was lost.
        why: what the engine says about it, such as `OOMKilled`.
        host: the machine that it ran on, if that is known.
    """

    node: str
    status: int | None
    why: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class JobNote:
    """Something to tell the user, such as what the job waits for; with `warns`, a warning,
    such as why the engine has ended the job."""

    text: str
    warns: bool = False


JobEvent: TypeAlias = NodeLines | NodeLog | NodeEnded | JobNote


class Engine(Protocol):
    """The module of an engine.

    Attributes:
        OPTIONS: its options.
    """

    OPTIONS: tuple[EngineOption, ...]

    def write(self, request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
        """Return the files of a job. They are a function of the arguments alone.

        `options` has a value for each of OPTIONS. Raises PlacerError for a run that the
        engine cannot schedule, such as a build that does not fit where it is to be.
        """

    def submit(
        self, folder: Path, request: JobRequest, options: Mapping[str, Any]
    ) -> Job:
        """Submit the job whose files are in a folder.

        Raises PlacerError if the engine is not there, or refuses it.
        """

    def watch(self, job: Any) -> Iterator[JobEvent]:
        """Yield the events of a job of `submit`, until it is over.

        The last event of each node is a NodeEnded; a node without one has ended with the
        job. Raises PlacerError if the job cannot be followed any more.
        """
