"""Rejects options that conflict and options that have no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placer.channel.transport import choose_streams
from placer.errors import PlacerError
from placer.plan.plan import Plan
from placer.plan.settings.sparse.table import Forgetting
from placer.runtime.control.options import OPTIONS, Options
from placer.runtime.control.publish_settings import check_publishing


def check_effects(plan: Plan, options: Options) -> None:
    """Raise PlacerError if options conflict or have no effect on a run of this plan."""
    if options.resume is not None and options.init_params is not None:
        raise PlacerError(
            "'resume' (--resume) and 'init_params' (--init-params) cannot be combined",
            hint="remove one of them; --resume also loads the parameters",
        )
    if options.trace_steps is not None and options.trace is None:
        raise PlacerError("'trace_steps' (--trace-steps) needs 'trace' (--trace FILE)")
    if options.new_rows and options.resume is None:
        raise PlacerError("'new_rows' (--new-rows) needs 'resume' (--resume DIR)")
    if options.partial and options.resume is None:
        raise PlacerError("'partial' (--partial) needs 'resume' (--resume DIR)")
    _check_stream(plan, options)
    if options.replay_order is not None and options.restarts:
        raise PlacerError(
            "'replay_order' (--replay-order) and 'restarts' (--restarts) cannot be combined:"
            " a replay does not go on after a failure",
            hint="remove --restarts; the order of a run with failures is replayed without"
            " them",
        )
    if options.shrink:
        _check_shrink(plan, options)
    _check_saving(plan, options)
    check_publishing(plan, options)
    if not any(has_order(plan, node.name) for node in plan.nodes):
        for name in ("record_order", "replay_order"):
            if getattr(options, name) is not None:
                raise PlacerError(
                    f"'{name}' (--{name.replace('_', '-')}) has no effect: the nodes of"
                    " this build train synchronously, always in the same order",
                    hint="remove the option; every run already has the same bits",
                )


def has_order(plan: Plan, node: str) -> bool:
    """Whether a node has work whose order depends on timing (see `--record-order`)."""
    return plan.worker_of(node) is not None or any(
        edge.exchange is not None and node in (*edge.sources, *edge.targets)
        for edge in plan.step_edges
    )


def check_thread_options(options: Options, **others: object) -> None:
    """Raise PlacerError for options, or `others` that are not None, that threads do not support."""
    for name, value in others.items():
        if value is not None:
            raise _threads_error(name)
    for option in OPTIONS:
        concerns = option.between_processes or option.name == "restarts"
        if concerns and getattr(options, option.name) != option.default:
            raise _threads_error(option.name)


def _threads_error(option: str) -> PlacerError:
    return PlacerError(
        f"'{option}' cannot be used with in-process nodes, which run as threads"
    )


def check_one_process(options: Options) -> None:
    """Raise PlacerError if an option needs several processes: this run has only one."""
    for option in OPTIONS:
        if option.between_processes and getattr(options, option.name) != option.default:
            raise PlacerError(
                f"'{option.name}' ({option.flag}) has no effect on a run of one process:"
                " it concerns several processes",
                hint="remove the option",
            )


def check_encryption(options: Options, endpoints: Mapping[str, str]) -> None:
    """Raise PlacerError if `insecure_network` is set but no connection uses a network."""
    if options.insecure_network and "tcp" not in choose_streams(
        options.transport, endpoints
    ):
        raise PlacerError(
            "'insecure_network' (--insecure-network) has no effect: all nodes run on this"
            " machine and do not use a network",
            hint="remove the option, or add --transport tcp",
        )


def check_base_port(
    base_port: int | None, endpoints: Callable[[int], Mapping[str, str]]
) -> None:
    """Raise PlacerError if no address depends on the base port.

    `endpoints` returns the addresses of all nodes for a base port.
    """
    if base_port is not None and endpoints(base_port) == endpoints(
        base_port - 1 if base_port > 1 else 2
    ):
        raise PlacerError(
            "'base_port' (--base-port) has no effect: every node has an explicit port",
            hint="remove the option, or remove the ports of the nodes",
        )


def _check_shrink(plan: Plan, options: Options) -> None:
    if options.resume is None:
        raise PlacerError("'shrink' (--shrink) needs 'resume' (--resume DIR)")
    if all(each.settings.forget == Forgetting() for each in plan.sparse_tables):
        raise PlacerError(
            "'shrink' (--shrink) has no effect: no sparse table has `forget`",
            hint="remove the option, or add `forget` to a sparse table of the spec",
        )


def _check_stream(plan: Plan, options: Options) -> None:
    given = [
        f"'{option.name}' ({option.flag})"
        for option in OPTIONS
        if option.of_stream and getattr(options, option.name) != option.default
    ]
    if plan.train.stream is None:
        for option in given:
            raise PlacerError(
                f"{option} has no effect: data.train of this build is no stream",
                hint="remove the option, or add 'stream' to data.train of the spec",
            )
        return
    if options.new_rows:
        raise PlacerError(
            "'new_rows' (--new-rows) has no effect: a stream goes on with new files",
            hint="remove the option; --resume is enough",
        )
    if plan.train.stream.lanes is not None:
        ends = "use --passes N or --steps N, which end a run"
        for name, hint in (("until", ends), ("skip_pass", "remove the option")):
            if getattr(options, name):
                raise PlacerError(
                    f"'{name}' (--{name.replace('_', '-')}) has no effect: {plan.train.source}"
                    " has no files",
                    hint=hint,
                )
    if options.until is not None and options.passes is not None:
        raise PlacerError(
            "'until' (--until) and 'passes' (--passes) cannot be combined",
            hint="remove one of them",
        )
    if options.skip_pass and options.resume is None:
        raise PlacerError("'skip_pass' (--skip-pass) needs 'resume' (--resume DIR)")


def _check_saving(plan: Plan, options: Options) -> None:
    train = plan.settings.train
    if options.checkpoint is not None or train.checkpoint or options.restarts:
        return
    for name in ("checkpoint_every", "checkpoint_keep"):
        if getattr(options, name) is not None:
            raise PlacerError(
                f"'{name}' (--{name.replace('_', '-')}) needs checkpoints, but the run"
                " saves none",
                hint="add 'checkpoint' (--checkpoint DIR), or train.checkpoint to the"
                " spec",
            )
    saves = options.save_params is not None or train.publish is not None
    if not saves and options.grace != Options().grace:
        raise PlacerError(
            "'grace' (--grace) has no effect: the run saves nothing, so a signal ends it"
            " immediately",
            hint="add 'checkpoint' (--checkpoint DIR) or 'save_params'"
            " (--save-params FILE)",
        )
