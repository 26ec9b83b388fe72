"""Reads the key `stream` of a source, and checks the section `train` of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.frontend.sections.parameters import Group
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.plan.settings.data.sources import Source
from placer.plan.settings.data.stream import Stream
from placer.plan.settings.data.window import Window
from placer.plan.settings.mistake import Mistake
from placer.plan.settings.training.update_modes import Sync


def read_stream(
    node: SpecNode,
    section: MappingNode,
    source: Source | None,
    split: str | None,
    remainder: str | None,
    shuffle: bool | Window | None,
    batch: int | None,
    which: str,
    problems: Problems,
) -> Stream | None:
    """Read the key; None after an error.

    Args:
        node: The value of the key.
        section: The mapping of the source.
        source: The source; None if it has an error.
        split: The split of the source.
        remainder: The key `remainder` of the source.
        shuffle: The key `shuffle` of the source; None after an error.
        batch: The number of rows of a batch; None after an error.
        which: `train` or `eval`.
        problems: Collects the errors.
    """
    if which == "eval":
        problems.add(
            "'stream' is for data.train: an evaluation reads the same rows each time",
            section.keys["stream"].span,
            "leave it out; the metrics of a pass are computed before its rows are trained",
        )
        return None
    good = decode(node, Stream, f"data.{which}.stream", problems)
    if len(good) < len(Stream.__struct_fields__):
        return None
    stream = problems.make(Stream, good, node)
    if stream is None or source is None:
        return None
    order = shuffle is not None and shuffle
    if mistake := stream.check(source, split, remainder, order, batch):
        problems.add_mistake(mistake, section)
        return None
    return stream


def check_training(
    section: MappingNode, groups: Sequence[Group], problems: Problems
) -> None:
    """Report settings of training that a stream does not have.

    Args:
        section: The section `train`.
        groups: The valid entries of `train.optimizer`.
        problems: Collects the errors.
    """
    for key, (why, hint) in _WITHOUT.items():
        if section.get_non_null(key) is not None:
            message = f"'{key}' cannot be used with a stream: {why}"
            problems.add(message, section.keys[key].span, hint)
    for group in groups:
        update = group.attrs["update"]
        if isinstance(update, Sync) and update.backup:
            mistake = Mistake(
                ("update", "sync", "backup"),
                "backup workers cannot be used with a stream: they leave out rows, and a"
                " stream trains each row once",
                "leave 'backup' out, or use 'update: async'",
                of_key=True,
            )
            problems.add_mistake(mistake, group.node)


_WITHOUT = {
    "epochs": (
        "each row is trained once",
        "leave epochs out; --passes N or, for files, --until now end a run",
    ),
    "early_stopping": (
        "it compares evaluations of the same rows",
        "leave early_stopping out",
    ),
}
"""Keys of `train` that a stream does not have: the reason, and a hint."""
