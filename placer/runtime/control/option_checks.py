"""Refuses options that contradict each other, and options without an effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placer.channel.transport import choose_streams
from placer.errors import PlacerError
from placer.plan.plan import Plan
from placer.plan.settings.sparse.table import Forgetting
from placer.runtime.control.options import OPTIONS, Options


def check_effects(plan: Plan, options: Options) -> None:
    """Raise PlacerError for options that contradict each other, or that have no effect on a
    run of a plan."""
    if options.resume is not None and options.init_params is not None:
        raise PlacerError(
            "'resume' (--resume) and 'init_params' (--init-params) cannot be combined",
            hint="a run that continues has its parameters from the checkpoint",
        )
    if options.trace_steps is not None and options.trace is None:
        raise PlacerError("'trace_steps' (--trace-steps) needs 'trace' (--trace FILE)")
    if options.partial and options.resume is None:
        raise PlacerError("'partial' (--partial) needs 'resume' (--resume DIR)")
    if options.shrink:
        _check_shrink(plan, options)
    _check_saving(plan, options)
    if not any(has_order(plan, node.name) for node in plan.nodes):
        for name in ("record_order", "replay_order"):
            if getattr(options, name) is not None:
                raise PlacerError(
                    f"'{name}' (--{name.replace('_', '-')}) has no effect: all nodes of"
                    " this build go in lockstep, so its runs have one order",
                    hint="leave it out: the bits of every run are the same",
                )


def has_order(plan: Plan, node: str) -> bool:
    """Whether a node does something in an order that depends on timing, which
    `--record-order` records."""
    return plan.worker_of(node) is not None or any(
        edge.exchange is not None and node in (*edge.sources, *edge.targets)
        for edge in plan.step_edges
    )


def check_thread_options(options: Options, **others: object) -> None:
    """Raise PlacerError for an option that nodes in threads cannot use; none of the
    `others` may be given."""
    for name, value in others.items():
        if value is not None:
            raise _threads_error(name)
    for option in OPTIONS:
        if option.between_processes and getattr(options, option.name) != option.default:
            raise _threads_error(option.name)


def _threads_error(option: str) -> PlacerError:
    return PlacerError(
        f"'{option}' cannot be used with in-process nodes, which are threads"
    )


def check_one_process(options: Options) -> None:
    """Raise PlacerError for an option about other processes; there is one only."""
    for option in OPTIONS:
        if option.between_processes and getattr(options, option.name) != option.default:
            raise PlacerError(
                f"'{option.name}' ({option.flag}) has no effect on a run of one process:"
                " there are no other processes",
                hint="leave it out",
            )


def check_encryption(options: Options, endpoints: Mapping[str, str]) -> None:
    """Raise PlacerError if connections are not encrypted anyway."""
    if options.insecure_network and "tcp" not in choose_streams(
        options.transport, endpoints
    ):
        raise PlacerError(
            "'insecure_network' (--insecure-network) has no effect: all nodes are on this"
            " machine, and connect without a network",
            hint="leave it out, or connect them by --transport tcp",
        )


def check_base_port(
    base_port: int | None, endpoints: Callable[[int], Mapping[str, str]]
) -> None:
    """Raise PlacerError if no node has its port from a base port; `endpoints` returns the
    addresses of all nodes with one."""
    if base_port is not None and endpoints(base_port) == endpoints(
        base_port - 1 if base_port > 1 else 2
    ):
        raise PlacerError(
            "'base_port' (--base-port) has no effect: every node has a port of its own",
            hint="leave it out, or leave the ports of nodes out",
        )


def _check_shrink(plan: Plan, options: Options) -> None:
    if options.resume is None:
        raise PlacerError("'shrink' (--shrink) needs 'resume' (--resume DIR)")
    if all(each.settings.forget == Forgetting() for each in plan.sparse_tables):
        raise PlacerError(
            "'shrink' (--shrink) has no effect: no sparse table has `forget`",
            hint="leave it out, or say in the spec which keys a table forgets",
        )


def _check_saving(plan: Plan, options: Options) -> None:
    """Check the options about what a run saves."""
    if options.checkpoint is not None or plan.settings.train.checkpoint is not None:
        return
    for name in ("checkpoint_every", "checkpoint_keep"):
        if getattr(options, name) is not None:
            raise PlacerError(
                f"--{name.replace('_', '-')} needs checkpoints, and the run saves none",
                hint="add --checkpoint DIR, or train.checkpoint to the spec",
            )
    if options.save_params is None and options.grace != Options().grace:
        raise PlacerError(
            "'grace' (--grace) has no effect: the run saves nothing, so a signal ends it"
            " at once",
            hint="add --checkpoint DIR or --save-params FILE",
        )
