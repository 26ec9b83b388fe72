"""Describes one run: its settings, its warnings, its waiting and its staleness."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from placer.plan.settings_by_key import setting_text
from placer.report.compared_settings import setting_name
from placer.report.numbers import (
    format_count,
    format_duration,
    format_size,
    format_time,
    plural,
)
from placer.report.outcome import restarts_text, staleness_text
from placer.report.progress.passes import files_text
from placer.report.progress.view import holders_text
from placer.report.run_files import Command, Run
from placer.runtime.control.events import Recovered, format_output

MOST_NOTES: Final = 20
"""The largest number of warnings, failures and resumptions of a run that are shown."""
LOADED: Final = 0.1
"""The share of the cores that other programs may use without a note."""
_MOST_OPTIMIZERS: Final = 4


def about_run(run: Run) -> dict[str, str]:
    """Return the facts about a run that do not change during the run, by label."""
    command = run.command
    found = {
        "folder": str(run.folder),
        "command": command.command,
        "continued": "; ".join(_continued(command)),
        "--set": ", ".join(
            f"{key}={setting_text(value)}" for key, value in command.set.items()
        ),
        "options": ", ".join(
            f"{setting_name(key, [run])} {setting_text(value)}"
            for key, value in command.options.items()
        ),
        "nodes": _nodes(command.settings),
        "optimizer": "; ".join(_optimizers(command.settings)),
        "batch": setting_text(command.settings.get("data.train.batch")),
        **_epochs(run),
        "sparse tables": "; ".join(_tables(run)),
        "started": format_time(command.started),
        "time": run_time(run.end.seconds),
        "restarts": restarts_text(run.end.restarts) if run.end.restarts else "",
        "machine": _machine(command.machine),
        "versions": ", ".join(f"{k} {v}" for k, v in command.versions.items()),
    }
    return {label: text for label, text in found.items() if text}


def _epochs(run: Run) -> dict[str, str]:
    """Return the number of epochs; of a stream, its last complete pass."""
    settings = run.command.settings
    named = {k for k, v in settings.items() if v is not None}
    if not any(key.startswith("data.train.stream") for key in named):
        return {"epochs": setting_text(settings.get("train.epochs"))}
    last = deque((line for line in run.history() if "pass" in line), maxlen=1)
    return {"last pass": _pass(last[0]) if last else "none is complete"}


def _pass(line: Mapping[str, Any]) -> str:
    facts = line["pass"]
    parts = [format_count(line["epoch"]), plural(facts["rows"], "row")]
    if facts["files"]:
        files = files_text(facts["first_file"], facts["last_file"], facts["files"])
        parts.insert(1, files)
    return ", ".join(parts)


def _continued(command: Command) -> Iterator[str]:
    """Yield the commands that continued a run."""
    for each in command.continued:
        yield f"after step {format_count(each.step)} by {each.command}"
    if command.continued:
        yield "options, settings and machine are those of the last command"


def run_time(seconds: float) -> str:
    """Format the time of a run.

    >>> run_time(0.957), run_time(83)
    ('1.0 s', '1:23')
    """
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _nodes(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key.removeprefix('nodes.')}: {count}"
        for key, count in settings.items()
        if key.startswith("nodes.")
    )


def _machine(machine: Mapping[str, Any]) -> str:
    parts = [str(machine.get("name", "")), str(machine.get("system", ""))]
    if cores := machine.get("cores"):
        parts.append(plural(cores, "core"))
    return ", ".join(filter(None, parts))


def _optimizers(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the optimizer, the learning rate and the update mode of each table."""
    tables: dict[str, dict[str, str]] = defaultdict(dict)
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        if section.startswith("optimizer."):
            tables[section.partition(".")[2]][name] = setting_text(value)
    described: dict[str, list[str]] = defaultdict(list)
    for name, table in tables.items():
        text = " ".join(filter(None, (table.get("op", ""), table.get("fn", ""))))
        if "learning_rate" in table:
            text += f", learning rate {table['learning_rate']}"
        if "update" in table:
            text += f", update {table['update']}"
        described[text].append(name)
    for text, names in [*described.items()][:_MOST_OPTIMIZERS]:
        yield text if len(described) == 1 else f"{', '.join(names)}: {text}"
    if (more := len(described) - _MOST_OPTIMIZERS) > 0:
        yield f"{more} more"


def _tables(run: Run) -> Iterator[str]:
    """Yield the rows, the counted keys and the memory of each sparse table at the end of a
    run, also on each node."""
    for name, size in run.end.tables.items():
        text = f"{name}: {plural(size.rows, 'row')}"
        if size.counted:
            text += f", {plural(size.counted, 'counted key')} without a row"
        text += f", {format_size(size.nbytes)}"
        if held := holders_text(
            run.end.table_rows.get(name, {}),
            run.end.table_counted.get(name, {}),
            run.end.table_bytes.get(name, {}),
        ):
            text += f" ({held})"
        yield text


def notes_of(run: Run) -> tuple[str, ...]:
    """Return the warnings, failures and resumptions of a run, in their order.

    Raises:
        PlacerError: the events are damaged.
    """
    found = list(dict.fromkeys([*_noted(run), *map(_warning, run.end.warnings)]))
    more = len(found) - MOST_NOTES
    if more > 0:
        return (
            *found[:MOST_NOTES],
            f"and {more} more in {run.folder / 'events.jsonl'}",
        )
    return tuple(found)


def _noted(run: Run) -> Iterator[str]:
    ended = _first_line(run.end.error or "")
    for event in run.events():
        match event.get("event"):
            case "warning" | "fewer":
                yield _warning(event["message"])
            case "resumed":
                yield f"resumed after step {event['step']} from {event['path']}"
            case "recovered":
                yield format_output(msgspec.convert(event, Recovered))
            case "failed":
                message = _first_line(event["message"])
                if message and message not in ended:
                    yield f"failure: {message}"


def _warning(message: str) -> str:
    return f"warning: {_first_line(message)}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def other_load(run: Run) -> str:
    """Return a sentence about other programs that may have slowed a run; else empty."""
    return load_text(run.end.other_load, run.command.machine.get("cores"))


def load_text(used: float | None, cores: int | None) -> str:
    """Return a sentence about the cores that other programs used; empty if few or unknown.

    >>> load_text(1.5, 2), load_text(0.1, 2)
    ('other programs used 1.5 of 2 cores, which may have slowed the run', '')
    """
    if used is None or not cores or used < LOADED * cores:
        return ""
    return (
        f"other programs used {used:.1f} of {plural(cores, 'core')}, which may have slowed"
        " the run"
    )


def waits_of(run: Run) -> dict[str, float]:
    """Return the share of its time in which each node waited for other nodes, over all
    evaluations. Empty if it was not measured.

    Raises:
        PlacerError: the history is damaged.
    """
    waited: dict[str, float] = defaultdict(float)
    before = total = 0.0
    for line in run.history():
        if shares := line.get("waiting"):
            seconds = line["seconds"] - before
            before, total = line["seconds"], total + seconds
            for node, share in shares.items():
                waited[node] += share * seconds
    return {node: each / total for node, each in waited.items()} if total else {}


def staleness_of(run: Run) -> str:
    """Return the mean, the median and the largest staleness of the gradients of a run, and
    of its GEO differences; empty for synchronous training."""
    end, texts = run.end, []
    if end.staleness:
        text = staleness_text(end.staleness, end.staleness_bound)
        texts.append(f"Staleness of the gradients: {text}.")
    if end.geo_staleness:
        text = staleness_text(end.geo_staleness, None)
        texts.append(f"Staleness of GEO differences: {text}.")
    return " ".join(texts)
