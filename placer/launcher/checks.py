"""Checks before a launch: that a build can be run like this, and its files be written."""

from __future__ import annotations

from pathlib import Path

from placer.build.plan import Plan, read_plan, read_sources
from placer.checkpoint.folder import check_continues
from placer.errors import PlacerError
from placer.files.writable import check_can_create, why_not_writable
from placer.launcher.engine_job import OnEngine
from placer.launcher.remote import Hosts, remote_endpoints
from placer.reentry import refuse_at_import, refuse_in_node
from placer.runtime.program.order import check_has_none
from placer.runtime.run.checkpoint_settings import (
    checkpoint_folder,
    checkpoint_settings,
)
from placer.runtime.run.options import OPTIONS, Options


def check_launch(
    build: Path, options: Options, *, machines: Hosts | OnEngine | None = None
) -> Plan:
    """Return the plan of a build; PlacerError if it must not be launched like this.

    The files of the options are on the other `machines`, if there are any, which check
    them.
    """
    refuse_in_node("placer.launch")
    plan = read_plan(build)
    if not plan.minimize:
        raise PlacerError(f"the build '{build}' can only predict")
    spec = build / read_sources(build).spec
    refuse_at_import("placer.launch", spec.parent, plan.modules)
    if machines is not None:
        if isinstance(machines, Hosts):
            remote_endpoints(plan, options, machines)
        elif options.base_port is not None:
            raise PlacerError(
                "'base_port' (--base-port) cannot be used with an engine",
                hint=f"options of {machines.name} say which ports nodes have:"
                " `--option help` lists them",
            )
        _check_combined(options)
        _check_absolute(plan, options)
        return plan
    check_output_files(build, options)
    check_resumed(plan, spec, options)
    _check_checkpoints(plan, build, options)
    if options.record_order is not None:
        check_can_create(options.record_order)
        check_has_none(options.record_order, [node.name for node in plan.nodes])
    return plan


def check_output_files(build: Path, options: Options) -> None:
    """Raise PlacerError if a file that the run writes cannot be written, is inside the
    build, or is named by two options."""
    targets: set[Path] = set()
    for option in OPTIONS:
        path = getattr(options, option.name)
        if option.file != "written" or path is None:
            continue
        why = None
        try:
            is_special = path.exists() and not path.is_file()  # a device, a pipe
        except OSError as error:  # for example, the name is too long
            raise PlacerError(f"cannot write '{path}': {error.strerror}") from error
        if not path.parent.is_dir():
            why = f"the folder '{path.parent}' does not exist"
        elif path.is_dir():
            why = "it is a folder"
        elif path.resolve().is_relative_to(build.resolve()):
            why = "it is inside the build folder"
        elif is_special and option.name in ("save_params", "trace"):
            why = "it is not a regular file"
        elif not is_special and (why := why_not_writable(path)):
            pass
        elif path.resolve() in targets and not is_special:
            why = "the run writes another file to the same path"
        if why is not None:
            raise PlacerError(f"cannot write '{path}': {why}")
        targets.add(path.resolve())


def check_resumed(plan: Plan, spec: Path, options: Options) -> None:
    """Raise PlacerError if a run of a spec cannot continue as its options say."""
    resumed, own = options.resume, checkpoint_folder(plan, spec, options)
    if resumed is not None and not resumed.is_dir() and resumed.resolve() != own:
        raise PlacerError(
            f"cannot resume: there is no folder '{resumed}'",
            hint="only the run's own folder, as --checkpoint names it, need not exist at"
            " the first start",
        )
    _check_combined(options)


def _check_combined(options: Options) -> None:
    """Raise PlacerError for options that contradict each other, or need another one."""
    if options.resume is not None and options.init_params is not None:
        raise PlacerError(
            "'resume' (--resume) and 'init_params' (--init-params) cannot be combined",
            hint="a run that continues has its parameters from the checkpoint",
        )
    if options.trace_steps is not None and options.trace is None:
        raise PlacerError("'trace_steps' (--trace-steps) needs 'trace' (--trace FILE)")
    if options.partial and options.resume is None:
        raise PlacerError("'partial' (--partial) needs 'resume' (--resume DIR)")
    if options.shrink and options.resume is None:
        raise PlacerError("'shrink' (--shrink) needs 'resume' (--resume DIR)")


def _check_checkpoints(plan: Plan, build: Path, options: Options) -> None:
    """Raise PlacerError if a folder of checkpoints cannot be used."""
    settings = checkpoint_settings(plan, build, options)
    if settings is not None and settings.folder.is_relative_to(build.resolve()):
        raise PlacerError(
            f"cannot write checkpoints to '{settings.folder}': it is inside the build"
            " folder"
        )
    if settings is not None:
        check_continues(settings.folder, options.resume)
        check_can_create(settings.folder)


def _check_absolute(plan: Plan, options: Options) -> None:
    """Raise PlacerError if an option names a file by a relative path."""
    for option in OPTIONS:
        path = getattr(options, option.name)
        is_remote = option.file and option.name != "key"
        if is_remote and path is not None and not path.is_absolute():
            raise PlacerError(
                f"{option.flag} names '{path}', which is a relative path",
                hint="with --hosts and --on, write an absolute path on the machine of"
                f" {plan.control}, or on all that read it",
            )


def check_thread_options(options: Options) -> None:
    """Raise PlacerError for an option that nodes in threads cannot use."""
    for option in OPTIONS:
        if not option.for_threads and getattr(options, option.name) != option.default:
            raise threads_error(option.name)


def threads_error(option: str) -> PlacerError:
    return PlacerError(
        f"'{option}' cannot be used with in-process nodes, which are threads"
    )
