"""The output of `placer checkpoints` for one checkpoint: everything in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from placer.checkpoint.manifest import (
    Machine,
    Manifest,
    StoredBlock,
    StoredData,
    StoredParameter,
    StoredSparse,
    Watched,
)
from placer.checkpoint.reading import StoredRows
from placer.place.ids import format_nodes
from placer.place.types import ITEM_BYTES, TensorType
from placer.plan.settings.data.window import Window
from placer.report.checkpoints import Listed, evaluation_text, holders, state_of
from placer.report.console import grid
from placer.report.numbers import (
    format_count,
    format_duration,
    format_size,
    format_time,
    plural,
)
from placer.report.progress.passes import files_text


def details_view(listed: Listed) -> Iterator[RenderableType]:
    """Yield the contents of one checkpoint: its run, its parameters and its files."""
    yield Text(f"{listed.path}: {state_of(listed)}", "bold")
    if listed.problem is not None:
        yield Text(listed.problem.message, "red")
    if (manifest := listed.manifest) is None:
        return
    yield Text()
    yield _facts_table(manifest)
    yield Text()
    yield _parameter_table(manifest, listed.rows)
    yield Text()
    if listed.rows:
        yield _row_table(listed.rows)
        yield Text()
    yield _file_table(manifest)


def _facts_table(manifest: Manifest) -> Table:
    table = grid("", "", numbers=())
    table.show_header = False
    table.columns[0].style = "dim"
    table.columns[0].no_wrap = True
    for topic, text in _facts(manifest):
        if text:
            table.add_row(topic, Text(text))
    return table


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    progress = manifest.progress
    yield "model", f"{manifest.name}, seed {manifest.seed}"
    written = format_time(manifest.written)
    yield "written", f"{written} by placer {manifest.placer}".strip()
    batches = plural(progress.batches, "batch", "batches")
    yield (
        "position",
        f"step {format_count(progress.step)}: {batches} ({plural(progress.rows, 'row')})"
        f" of {'pass' if progress.stream else 'epoch'} {format_count(progress.epoch)}",
    )
    if (stream := progress.stream) is not None and stream.lanes:
        yield "lanes", f"{plural(len(stream.lanes), 'position')} of a Python function"
    elif stream is not None:
        files = stream.current.files
        named = files_text(files[0].path, files[-1].path, len(files))
        trained = plural(len(stream.trained), "file")
        yield "files", f"{named}; {trained} of the stream so far"
    yield "trained for", format_duration(progress.seconds)
    yield "evaluation", evaluation_text(manifest)
    yield "best", _watched(progress.best)
    yield "early stopping", _watched(progress.stopping)
    yield "rows", _data(manifest.train)
    yield "evaluated", _data(manifest.evaluation)
    for i, (machine, nodes) in enumerate(_by_machine(manifest).items()):
        yield "" if i else "machines", f"{format_nodes(nodes)}: {machine}"


def _watched(watched: Watched | None) -> str:
    """Describe the best evaluation so far, and how many evaluations followed."""
    if watched is None:
        return ""
    text = (
        f"{watched.metric} {watched.value:.4g} after step {format_count(watched.step)}"
        f" (mode {watched.mode})"
    )
    since = plural(watched.since, "evaluation")
    return f"{text}, {since} since" if watched.since else text


def _data(data: StoredData | None) -> str:
    """Describe a source of rows: the file, the number of rows, and their order."""
    if data is None:
        return ""
    settings = data.settings
    split = f" {settings.split}" if settings.split else ""
    order = f"; shuffle seed {settings.seed}" if settings.shuffle else ""
    if isinstance(settings.shuffle, Window):
        order += f", window {settings.shuffle.window}, {settings.shuffle.lanes} lanes"
    batch = f", batch {settings.batch}" if settings.batch else ""
    return f"{settings.source}{split}, {plural(data.rows, 'row')}{batch}{order}"


def _by_machine(manifest: Manifest) -> dict[str, list[str]]:
    nodes: dict[str, list[str]] = {}
    for node, machine in manifest.machines.items():
        nodes.setdefault(_machine(machine), []).append(node)
    return nodes


def _machine(machine: Machine) -> str:
    devices = ", ".join(f"{name} ({kind})" for name, kind in machine.devices.items())
    parts = (
        devices,
        plural(machine.xla_threads, "thread") + " of XLA",
        f"processor {machine.processor}",
        *(f"{name} {version}" for name, version in machine.versions.items()),
    )
    return ", ".join(filter(None, parts))


Rows = Mapping[str, Mapping[str, StoredRows]]
"""The contents of each file of each sparse table."""


def _parameter_table(manifest: Manifest, rows: Rows) -> Table:
    numbers = ("updates", "size")
    names = ("parameter", "type", "optimizer", *numbers, "on")
    table = grid(*names, numbers=numbers)
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.header in numbers
    for name, each in manifest.parameters.items():
        cells = (
            name,
            str(TensorType(each.dtype, each.shape)),
            _optimizer(each),
            format_count(each.updates) if each.rule is not None else "",
            format_size(_nbytes(each)),
            holders(block.file for block in _all_blocks(each)),
        )
        table.add_row(*map(Text, cells))
    for name, sparse in manifest.sparse.items():
        parts = rows[name].values() if name in rows else None
        count = "keys" if parts is None else sum(part.rows for part in parts)
        cells = (
            name,
            f"{sparse.dtype}[{count}, {sparse.dim}]",
            _optimizer(sparse),
            "",
            "" if parts is None else format_size(sum(part.nbytes for part in parts)),
            holders(file for file, _, _ in sparse.files),
        )
        table.add_row(*map(Text, cells))
    return table


def _row_table(rows: Rows) -> Table:
    """Return the rows of each sparse table on each node, and its counted keys without a
    row."""
    numbers = ("rows", "counted keys", "size")
    table = grid("sparse table", "on", *numbers, numbers=numbers)
    for name, files in rows.items():
        for i, (file, part) in enumerate(files.items()):
            counts = format_count(part.rows), format_count(part.counted)
            cells = (
                "" if i else name,
                holders([file]),
                *counts,
                format_size(part.nbytes),
            )
            table.add_row(*map(Text, cells))
    return table


def _optimizer(parameter: StoredParameter | StoredSparse) -> str:
    if parameter.rule is None:
        return "not trained"
    rules = [(parameter.rule, parameter.slots)]
    if isinstance(parameter, StoredParameter):
        rules = [(parameter.rule, (*parameter.slots, *parameter.leaves))]
        outer = parameter.outer
        if outer is not None and outer.slots:
            rules.append((f"outer {outer.rule}", outer.slots))
    text = ", ".join(
        f"{rule} ({', '.join(slots)})" if slots else rule for rule, slots in rules
    )
    averaged = isinstance(parameter, StoredParameter) and parameter.averaged
    return f"{text}, with averages" if averaged else text


def _nbytes(parameter: StoredParameter) -> int:
    """Return the bytes of a parameter with its state and the workers' own copies."""
    own = parameter.local_arrays * len(parameter.local)
    leaves = tuple(parameter.leaves) * max(1, len(parameter.local))
    types = map(parameter.type_of, (*parameter.arrays, *own, *leaves))
    return sum(prod(each.shape) * ITEM_BYTES[each.dtype] for each in types)


def _all_blocks(parameter: StoredParameter) -> list[StoredBlock]:
    """Return the blocks of a parameter. The workers' own copies count as blocks."""
    size = prod(parameter.shape)
    local = parameter.local.values()
    own = [StoredBlock(each.file, each.tensor, 0, size) for each in local]
    return [*parameter.blocks, *own]


def _file_table(manifest: Manifest) -> Table:
    numbers = ("size", "blocks", "values")
    table = grid("file", *numbers, numbers=numbers)
    blocks = [b for each in manifest.parameters.values() for b in _all_blocks(each)]
    for name, file in manifest.files.items():
        own = [block for block in blocks if block.file == name]
        values = sum(block.stop - block.start for block in own)
        counts = (format_count(len(own)), format_count(values)) if own else ("", "")
        cells = format_size(file.nbytes), *counts
        table.add_row(*map(Text, (name, *cells)))
    return table
