"""Reads the section `train`: the loss, the optimizers and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.schema import Slicing, Train
from placer.compiler.frontend.sections.buckets import KEY as BUCKETS
from placer.compiler.frontend.sections.buckets import check_buckets
from placer.compiler.frontend.sections.data import RowSources
from placer.compiler.frontend.sections.evaluations import check_evaluations
from placer.compiler.frontend.sections.optimizers import read_clip, read_groups
from placer.compiler.frontend.sections.parameters import Group
from placer.compiler.frontend.sections.publishing import read_publishing
from placer.compiler.frontend.sections.stream import check_training
from placer.compiler.frontend.yaml.decode import decode, decode_parts
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SpecNode,
    as_list,
)
from placer.place import Place
from placer.plan.settings.checks import describe_value
from placer.plan.settings.run import TrainKeys


@dataclass(frozen=True, slots=True)
class Training:
    """The content of the section, without keys that have errors.

    `settings` are the fields of `TrainSettings` and of its nested structs.
    """

    settings: Mapping[str, Any]
    minimize: ScalarNode | None
    metrics: Sequence[ScalarNode]
    groups: Sequence[Group]
    clip: dict[str, float] | None
    backward: Place | None
    threads: ScalarNode | None = None


def read_train(
    section: SpecNode | None, rows: RowSources, context: Context
) -> Training:
    """Read the section `train`. `rows` are the sources of the section `data`."""
    problems = context.problems
    good = decode(section, Train, "train", problems)
    if not isinstance(section, MappingNode):
        return Training(good, None, (), (), None, None)
    if (parts := _microbatches(good, section, problems)) is not None:
        good["microbatches"] = parts
    threads = section.get("threads") if good.get("threads") is not None else None
    assert threads is None or isinstance(threads, ScalarNode)
    loss = section.get("minimize") if "minimize" in good else None
    assert loss is None or isinstance(loss, ScalarNode)
    metrics: Sequence[ScalarNode] | None = None  # None after an error.
    if good.get("metrics") is not None:
        metrics = _distinct(section.entries["metrics"], problems)
    elif "metrics" in good and loss is not None:
        metrics = (loss,)
    names = None if metrics is None else [node.text for node in metrics]
    settings = {**decode_parts(good, TrainKeys, "train", problems), "metrics": names}
    check_evaluations(section, settings, names, rows.has_eval, problems)
    is_stream = rows.train is not None and rows.train.stream is not None
    if (published := good.get("publish")) is not None:
        settings["publish"] = read_publishing(published, is_stream, problems)
    backward = None
    if good.get("backward") is not None:
        backward = context.places.merge(None, section.get("backward"))
    clip = read_clip(good.get("clip"), "train.clip", problems)
    written = decode(good.get("slicing"), Slicing, "train.slicing", problems)
    of_groups: dict[str, Any] = {"slicing": written or asdict(Slicing())}
    if good.get(BUCKETS) is not None:
        of_groups[BUCKETS] = good[BUCKETS]
    if good.get("schedule") == "gpipe" and parts == 1:
        problems.add(
            "'schedule: gpipe' has no effect: it orders microbatches, and a step has"
            " only one",
            section.keys["schedule"].span,
            "add microbatches: 4, or leave schedule out",
        )
    groups: Sequence[Group] = ()
    if (entries := good.get("optimizer")) is not None:
        batch = None if rows.train is None else rows.train.batch
        groups = read_groups(entries, of_groups, batch, context)
    if BUCKETS in of_groups and entries and len(groups) == len(as_list(entries)):
        check_buckets(section, groups, parts or 1, context.cluster, problems)
    if is_stream:
        check_training(section, groups, problems)
    return Training(settings, loss, metrics or (), groups, clip, backward, threads)


def _microbatches(
    good: Mapping[str, Any], section: MappingNode, problems: Problems
) -> int | None:
    """Return the number of microbatches, which has two keys; None after an error."""
    if not {"microbatches", "gradient_accumulation"} <= good.keys():
        return None
    parts: int | None = good["gradient_accumulation"]
    if parts is None:
        written: int = good["microbatches"]
        return written
    other = section.get("microbatches")
    if other is None or other.value == parts:
        return parts
    problems.add(
        "'gradient_accumulation' and 'microbatches' are the same setting, but have"
        f" different values: {parts} and {describe_value(other.value)}",
        section.keys["gradient_accumulation"].span,
        "write only one of the two",
    )
    return None


def _distinct(node: SpecNode, problems: Problems) -> list[ScalarNode]:
    metrics: dict[str, ScalarNode] = {}
    for item in as_list(node):
        assert isinstance(item, ScalarNode)
        if item.text in metrics:
            problems.add(f"the metric '{item.text}' is listed twice", item.span)
        metrics.setdefault(item.text, item)
    return list(metrics.values())
