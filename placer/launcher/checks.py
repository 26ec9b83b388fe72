"""Checks before a launch that the build can run and that its output files can be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from placer.channel.endpoint import show_endpoint
from placer.checkpoint.choice import check_has_some, checkpoints_hint
from placer.checkpoint.folder import (
    check_best_is_free,
    check_continues,
    claimed,
    has_none,
    is_continued,
)
from placer.errors import PlacerError
from placer.launcher.engine_job import OnEngine
from placer.launcher.remote import Hosts, remote_hosts
from placer.plan.folder import check_outside
from placer.plan.plan import Plan, read_plan, read_sources
from placer.report.run_files import HISTORY, KEPT, is_run
from placer.runtime.asynchronous.recorded_order import check_has_none
from placer.runtime.control.checkpoint_settings import (
    best_evaluation,
    check_folder,
    checkpoint_folder,
    checkpoint_settings,
    needs_folder,
)
from placer.runtime.control.option_checks import (
    check_base_port,
    check_effects,
    check_encryption,
    check_one_process,
)
from placer.runtime.control.options import OPTIONS, Option, Options
from placer.runtime.control.publish_settings import publish_settings
from placer.system.files.nearest_path import path_hint
from placer.system.files.writable import check_can_create, why_not_writable
from placer.system.reentry import refuse_at_import, refuse_in_node


def check_launch(
    build: Path,
    options: Options,
    *,
    machines: Hosts | OnEngine | None = None,
    run: Path | None = None,
) -> tuple[Plan, Options]:
    """Check that a build can be launched; return its plan and the completed options.

    If the spec has checkpoints without a folder, the options get the folder `checkpoints`
    next to the build. If it contains checkpoints of another run, they get
    `checkpoints-2`, and so on. If there are other `machines`, paths in the options refer
    to files there, which those machines check. `run` is the folder of the run, if it is
    known before the run.

    Raises:
        PlacerError: if the build must not be launched with these options.
    """
    refuse_in_node("placer.launch")
    plan = read_plan(build)
    if not plan.settings.train.minimize:
        raise PlacerError(f"the build '{build}' can only predict")
    spec = build / read_sources(build).spec
    refuse_at_import("placer.launch", spec.parent, plan.modules)
    if machines is not None:
        if options.restarts:
            check_can_go_back(plan, build, options)
            if isinstance(machines, OnEngine) and not machines.starts_again:
                raise PlacerError(
                    f"'restarts' (--restarts) cannot be used with --on {machines.name}",
                    hint="remove the option, and continue a failed run with --resume",
                )
        if isinstance(machines, Hosts):
            _check_hosts(plan, options, machines)
        elif options.base_port is not None:
            raise PlacerError(
                "'base_port' (--base-port) cannot be used with an engine",
                hint=f"use the options of {machines.name} for the ports of the nodes: "
                "`--option help` lists them",
            )
        check_effects(plan, options)
        _check_absolute(plan, options)
        check_folder(plan, options)
        return plan, options
    if len(plan.processes) == 1:
        check_one_process(options)
    if needs_folder(plan, options):
        options = replace(options, checkpoint=_default_folder(build, options))
    check_output_files(build, options, run)
    check_here(plan, spec, options)
    _check_outside(plan, build, options)
    return plan, options


@contextmanager
def claimed_folder(plan: Plan, folder: Path | None) -> Iterator[None]:
    """Claim a folder of checkpoints for the run of a stream, so that one command at a time uses it.

    Raises:
        InUseError: if another run uses the folder.
    """
    if folder is None or plan.train.stream is None:
        yield
        return
    with claimed(folder):
        yield


def check_can_go_back(plan: Plan, build: Path, options: Options) -> None:
    """Raise PlacerError if a run with `--restarts` has no folder of checkpoints, and no launcher
    on the machine of its control node that could make one."""
    if checkpoint_settings(plan, build, options) is None:
        raise PlacerError(
            "'restarts' (--restarts) needs 'checkpoint' (--checkpoint DIR): after a failure,"
            " all nodes go back to a checkpoint",
            hint=f"name a folder on the machine of {plan.control}, or one that all machines"
            " share",
        )


def _default_folder(build: Path, options: Options) -> Path:
    """Return the first folder next to the build without checkpoints of another run."""
    first = build.resolve().parent / "checkpoints"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(
        folder
        for folder in chain([first], later)
        if has_none(folder) or is_continued(folder, options.resume)
    )


def _check_hosts(plan: Plan, options: Options, hosts: Hosts) -> None:
    """Raise PlacerError for invalid hosts and for options without effect."""
    listed = remote_hosts(plan, options, hosts)
    spares = {host: show_endpoint((host, 1)) for host in listed.spares}
    check_encryption(options, listed.addresses | spares)
    check_base_port(
        options.base_port,
        lambda port: (
            remote_hosts(plan, replace(options, base_port=port), hosts).addresses
        ),
    )


def check_output_files(build: Path, options: Options, run: Path | None = None) -> None:
    """Raise PlacerError for an invalid output file.

    An output file must be writable, must not be named by two options, and must not be
    inside the build. It must not be one of the files that each run keeps in its folder,
    except for `--history RUN/history.jsonl` of the same run.

    Args:
        build: the build folder.
        options: the options of the run.
        run: the folder of the run, if it is known before the run.
    """
    targets: set[Path] = set()
    for option in OPTIONS:
        path = getattr(options, option.name)
        if option.file != "written" or path is None:
            continue
        why = hint = None
        try:
            is_special = path.exists() and not path.is_file()  # for example a pipe
        except OSError as error:  # for example if the name is too long
            raise PlacerError(f"cannot write '{path}': {error.strerror}") from error
        if not path.parent.is_dir():
            why = f"the folder '{path.parent}' does not exist"
            hint = path_hint(path.parent, Path.is_dir)
        elif path.is_dir():
            why = "it is a folder"
        elif is_special and option.name in ("save_params", "trace"):
            why = "it is not a regular file"
        elif path.resolve() in targets and not is_special:
            why = "the run writes another file to this path"
        elif not is_special:
            why = why_not_writable(path, replaces=option.name != "history")
        if why:
            raise PlacerError(f"cannot write '{path}': {why}", hint=hint)
        check_outside(path, build)
        _check_not_kept(path, option, options, run)
        targets.add(path.resolve())
    if options.checkpoint is not None:
        check_outside(options.checkpoint, build, "checkpoints to ")
    if options.record_order is not None:
        check_outside(options.record_order, build, "orders to ")


def _check_not_kept(
    path: Path, option: Option, options: Options, run: Path | None
) -> None:
    """Raise PlacerError if a path is one of the files that a run keeps in its folder."""
    target = path.resolve()
    folder = target.parent
    own = run is not None and folder == run.resolve()
    if target.name not in KEPT or not (own or is_run(folder)):
        return
    if option.name == "history" and target.name == HISTORY:
        resume = options.resume
        if own or (resume is not None and folder in resume.resolve().parents):
            return
    raise PlacerError(
        f"cannot write '{path}': each run keeps a file with this name in its folder",
        hint=f"choose another path for {option.flag} ({option.name}=…)",
    )


def check_here(plan: Plan, spec: Path, options: Options) -> None:
    """Raise PlacerError for options that are invalid when a spec runs on this machine."""
    check_encryption(options, {plan.control: "127.0.0.1:1"})
    resumed, own = options.resume, checkpoint_folder(plan, spec, options)
    if resumed is not None and not resumed.is_dir() and resumed.resolve() != own:
        raise PlacerError(
            f"cannot resume: the folder '{resumed}' does not exist",
            hint=checkpoints_hint(resumed)
            or "only the folder of --checkpoint may be missing at the first start",
        )
    check_effects(plan, options)
    if resumed is not None and resumed.is_dir() and resumed.resolve() != own:
        check_has_some(resumed)
    if own is not None:
        check_continues(own, resumed)
        if best_evaluation(plan) is not None:
            check_best_is_free(own)
        check_can_create(own)
    if options.record_order is not None:
        check_can_create(options.record_order)
        check_has_none(options.record_order)


def _check_outside(plan: Plan, build: Path, options: Options) -> None:
    settings = checkpoint_settings(plan, build, options)
    if settings is not None:
        check_outside(settings.folder, build, "checkpoints to ")
    publishing = publish_settings(plan, build, options)
    if publishing is None:
        return
    check_outside(publishing.folder, build, "publications to ")
    check_can_create(publishing.folder)
    if settings is not None and settings.folder == publishing.folder:
        raise PlacerError(
            f"checkpoints and publications cannot share the folder '{settings.folder}'",
            hint="name two folders",
        )


def _check_absolute(plan: Plan, options: Options) -> None:
    for option in OPTIONS:
        path = getattr(options, option.name)
        is_remote = option.file and option.name != "key"
        if is_remote and path is not None and not path.is_absolute():
            raise PlacerError(
                f"{option.flag} '{path}' is a relative path",
                hint="with --hosts or --on, give an absolute path on the machine of "
                f"{plan.control}, or on all machines that read the file",
            )
