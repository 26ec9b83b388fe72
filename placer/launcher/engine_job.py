"""Runs a build as a job of an engine: writes the job's files, submits and follows the
job."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from placer.channel.keys import find_key, new_key
from placer.errors import PlacerError
from placer.launcher.delivery import build_files
from placer.launcher.engines.engine import Engine, JobFile, JobRequest
from placer.launcher.engines.find import find_engine
from placer.launcher.engines.options import read_engine_options
from placer.launcher.engines.resources import needs_of
from placer.launcher.followed import FollowedJob
from placer.launcher.job_folder import remove_job_files, write_job_files
from placer.launcher.logs import LogFolder
from placer.launcher.node_command import node_arguments
from placer.plan.plan import Plan, data_root
from placer.runtime.control.options import OPTIONS, Options


@dataclass(frozen=True)
class OnEngine:
    """An engine with its options for one run.

    Attributes:
        name: slurm, kubernetes, ray, or the name of an entry point.
        given: options of the engine, as texts or as values.
        data: the data folder on the machines. Default: their PLACER_DATA.

    Raises:
        PlacerError: if the engine does not exist or does not have an option.
    """

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None

    def __post_init__(self) -> None:
        if self.data is not None and not self.data.is_absolute():
            raise PlacerError(
                f"--data '{self.data}' is a relative path",
                hint="with --on, give an absolute path on the machines of the job",
            )
        _ = self.options  # Raises an error for invalid options.

    @cached_property
    def engine(self) -> Engine:
        return find_engine(self.name)

    @property
    def starts_again(self) -> bool:
        """Whether the engine supports `--restarts`."""
        return getattr(self.engine, "RESTARTS", False)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The values of all options of the engine, with defaults."""
        return read_engine_options(self.name, self.engine.OPTIONS, self.given)


def request_job(build: Path, plan: Plan, options: Options, on: OnEngine) -> JobRequest:
    """Return the description of a run that an engine needs.

    Raises:
        PlacerError: if the key of the run cannot be used.
        BuildError: if the build was edited.
    """
    train = plan.settings.train
    given = options.save_params, options.checkpoint, options.publish
    saves = any(each is not None for each in given)
    return JobRequest(
        name=plan.name,
        plan=plan,
        files=build_files(build, plan),
        needs=needs_of(
            plan,
            on.data or data_root(build),
            emulate=options.emulate or plan.settings.emulate,
        ),
        arguments=node_arguments(replace(options, key=None, base_port=None)),
        data=on.data,
        key=find_key(options.key) or new_key(),
        run_id=secrets.token_hex(8) if options.restarts else "",
        restarts=options.restarts,
        join_timeout=options.join_timeout,
        reads=_named_files(options, "read"),
        writes=_named_files(options, "written"),
        folders=_named_files(options, "folder"),
        saves=saves or bool(train.checkpoint or train.publish),
        grace=options.grace,
        deadline=options.deadline,
    )


def _named_files(options: Options, use: str) -> dict[str, Path]:
    given = {
        option.flag: getattr(options, option.name)
        for option in OPTIONS
        if option.file == use and option.name != "key"
    }
    return {flag: path for flag, path in given.items() if path is not None}


def write_job(
    folder: Path, build: Path, request: JobRequest, on: OnEngine
) -> dict[Path, JobFile]:
    """Write the files of a job into a folder and return the files by path. See
    `write_job_files`."""
    files = on.engine.write(request, on.options)
    write_job_files(folder, files, build)
    return {folder / name: file for name, file in files.items()}


@contextmanager
def followed_job(
    build: Path, plan: Plan, options: Options, logs: LogFolder, on: OnEngine
) -> Iterator[FollowedJob]:
    """Write and submit a job, and yield it; the end of the context stops following it.
    If the job cannot be submitted, its files are removed."""
    request = request_job(build, plan, options, on)
    write_job(logs.folder, build, request, on)
    followed = FollowedJob(on.name)
    with ExitStack() as exits:
        exits.callback(followed.close)
        try:
            exits.enter_context(followed.open_nodes([*plan.processes], logs.folder))
            job = on.engine.submit(logs.folder, request, on.options)
        except BaseException:
            remove_job_files(logs.folder)
            raise
        followed.follow(job, on.engine.watch(job), logs.described(job.folder))
        yield followed
