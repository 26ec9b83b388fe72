"""Formats the result of a run or a compilation, as lines or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.checkpoint.folder import BEST
from placer.checkpoint.manifest_file import read_manifest
from placer.place.ids import format_nodes
from placer.place.node_kinds import CPU, SERVER, NodeId
from placer.plan.plan import Plan
from placer.report.numbers import format_count, format_metrics, format_size, plural
from placer.report.progress.view import holders_text, table_text
from placer.report.shown_path import shown_path
from placer.runtime.control.result import PredictionResult, Restart, Result
from placer.runtime.control.table_counts import TableCounts

MOST_RESTARTS: Final = 10
"""The largest number of restarts that are listed."""


def result_lines(result: Result) -> Iterator[str]:
    """Yield the result of a run as lines of text."""
    sent = format_size(sum(result.bytes_sent.values()))
    steps = plural(result.steps, "step")
    if not result.has_trained:
        yield f"{steps}; nothing was left to train"
    elif result.samples_per_second:
        rate = format_count(result.samples_per_second)
        yield f"{steps}, {rate} samples/s, {sent} sent"
    else:  # The first step is not measured.
        yield f"{steps}, {sent} sent"
    before = "  (before shrinking)" * result.is_before_shrinking
    if result.metrics:
        last = "last epoch" if result.passes is None else "last pass "
        yield f"  {last}  {format_metrics(result.metrics)}{before}"
    if result.eval:
        yield f"  evaluation  {format_metrics(result.eval)}{before}"
    if result.best_eval and result.best is None:
        # The line of the best checkpoint has the same metrics.
        yield f"  best        {format_metrics(result.best_eval)}  (step {result.best_step})"
    if result.diverged:
        yield f"  {result.diverged}"
    if result.staleness:
        text = staleness_text(result.staleness, result.staleness_bound)
        yield f"  staleness   {text}"
    if result.geo_staleness:
        text = staleness_text(result.geo_staleness, None)
        yield f"  staleness   {text}  of GEO differences"
    if result.divergence is not None:
        yield f"  divergence  {result.divergence:.4g}"
    if result.untrained_rows:
        rows = plural(result.untrained_rows, "row")
        yield f"  untrained   {rows} of stragglers"
    for name, counts in result.tables.items():
        known = {n: v for n, v in counts.items() if n != "hit_rate"}
        yield f"  {table_text(name, msgspec.convert(known, TableCounts))}"
        if held := holders_text(
            result.table_rows.get(name, {}),
            result.table_counted.get(name, {}),
            result.table_bytes.get(name, {}),
        ):
            yield f"    {held}"
    yield from restart_lines(result.restarts)
    width = max(map(len, result.shares), default=0)
    for node, shares in result.shares.items():
        yield f"  {node:{max(width, 10)}}  {_shares(shares)}"


def restart_lines(restarts: Sequence[Restart]) -> Iterator[str]:
    """Yield lines about the failures after which a run went on: the last of them, after the
    totals if there are several."""
    lines = [*map(str, restarts[-MOST_RESTARTS:])]
    if len(restarts) > MOST_RESTARTS:
        lines.insert(0, f"{len(restarts) - MOST_RESTARTS} before")
    if len(restarts) > 1:
        lines.insert(0, restarts_text(restarts))
    for i, line in enumerate(lines):
        yield f"  {'' if i else 'restarts':10}  {line}"


def restarts_text(restarts: Sequence[Restart]) -> str:
    """Return the number of restarts, their repeated steps and their time as text."""
    again = plural(sum(each.again for each in restarts), "step")
    seconds = sum(each.seconds for each in restarts)
    return f"{len(restarts)}: {again} again, {seconds:.1f} s"


def best_lines(best: Path, *, is_before_shrinking: bool = False) -> Iterator[str]:
    """Yield lines about the checkpoint with the best evaluation: its metrics and its
    path."""
    progress = read_manifest(best).progress
    metrics = {name: float(value) for name, value in progress.eval.items()}
    before = ", before shrinking" * is_before_shrinking
    yield f"  best        {format_metrics(metrics)}  (step {progress.step}{before})"
    yield f"              is in {shown_path(best_path(best))}"


def best_path(best: Path) -> Path:
    """Return the link to the checkpoint with the best evaluation if it exists, otherwise
    the checkpoint."""
    link = best.with_name(BEST)
    return link if link.resolve() == best.resolve() else best


def _shares(shares: Mapping[str, float]) -> str:
    """Format how a node spent the traced steps, longest activity first."""
    shown = sorted(shares.items(), key=lambda item: -item[1])
    return "  ".join(
        f"{'other' if category == 'step' else category} {share:.0%}"
        for category, share in shown
        if share >= 0.005
    )


def staleness_text(staleness: Mapping[str, int], bound: int | None) -> str:
    """Return the mean, the median and the maximum of a histogram of staleness."""
    values = sorted(int(key) for key, n in staleness.items() for _ in range(n))
    mean = sum(values) / len(values)
    median = values[len(values) // 2]
    most = f"{values[-1]}" if bound is None else f"{values[-1]} of at most {bound}"
    return f"mean {mean:.2f}  median {median}  maximum {most}"


def result_json(result: Result) -> str:
    """Return the result of a run as a JSON object on one line. JSON lacks NaN and
    infinity, so they become null."""
    return msgspec.json.encode(_fields(result)).decode()


def busy_json(folder: Path) -> str:
    """Return the JSON object of a run that did nothing, because another one uses its folder of
    checkpoints: that of a run without steps, and the folder in `busy`."""
    nothing = Result(0, {}, {}, 0.0, {}, passes=0)
    return msgspec.json.encode(_fields(nothing) | {"busy": str(folder)}).decode()


def _fields(result: Result) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(result)
    del shown["event"], shown["warnings"], shown["failed_late"]
    shown |= {"best_eval": result.best_eval, "best_step": result.best_step}
    return shown


def prediction_lines(result: PredictionResult, out: Path) -> Iterator[str]:
    """Yield the result of a prediction: one line, and one for each sparse table."""
    sent = format_size(sum(result.bytes_sent.values()))
    rate = format_count(result.samples_per_second)
    yield f"{plural(result.rows, 'row')}, {rate} rows/s, {sent} sent; written to {out}"
    for name, counts in result.tables.items():
        text = f"  table {name}  {plural(int(counts['rows'] or 0), 'row')}"
        hit_rate = counts["hit_rate"]
        yield text if hit_rate is None else f"{text}  hit rate {hit_rate:.1%}"


def plan_line(plan: Plan) -> str:
    """Return one line about a plan: programs, edges, bytes per step, and idle
    servers.
    """
    programs = plural(len(plan.nodes), "program")
    nodes = format_nodes(node.name for node in plan.nodes)
    edges = plural(len(plan.step_edges), "edge")
    nbytes = format_size(sum(edge.nbytes for edge in plan.step_edges))
    line = f"{programs} ({nodes}), {edges}, {nbytes} per step"
    holders = {name for sparse in plan.sparse_tables for name in sparse.holders}
    idle = [
        node.name
        for node in plan.nodes
        if NodeId(node.name).kind == SERVER
        and not (node.tables or node.name in holders or node.computes)
    ]
    return f"{line}; no parameters on {format_nodes(idle)}" if idle else line


CROWDED_RATIO = 2
"""A note warns about more processes per core than this."""


def crowding_note(plan: Plan, cores: int) -> str | None:
    """Return a note if many processes share few cores, otherwise None."""
    if len(plan.processes) <= CROWDED_RATIO * cores:
        return None
    return f"{len(plan.processes)} processes share {plural(cores, 'core')}"


def emulation_note(plan: Plan) -> str:
    """Return one line that says which devices are emulated."""
    kinds = {kind for node in plan.nodes if node.computes for kind in node.devices}
    kinds.discard(CPU)
    if not kinds:
        return "no devices to emulate"
    listed = " and ".join(sorted(kinds))
    return f"every {listed} is emulated by a CPU device"
