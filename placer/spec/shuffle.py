"""Reads the key `shuffle` of a source: true, false, or a window."""

from __future__ import annotations

from msgspec import structs

from placer.config.sources import WITH_PIECES, Source
from placer.config.window import DEFAULT_LANES, Window
from placer.spec.decode import decode, report_wrong_type
from placer.spec.problems import Problems
from placer.spec.tree import MappingNode, SpecNode


def read_shuffle(
    node: SpecNode,
    section: MappingNode,
    source: Source | None,
    batch: int | None,
    which: str,
    problems: Problems,
) -> bool | Window | None:
    """Read the key; report errors and return None.

    Args:
        node: The value of the key.
        section: The mapping of the source.
        source: The source; None if it has an error.
        batch: The rows of a batch; None if they are not known.
        which: `train` or `eval`.
        problems: Where errors are reported.

    Returns:
        The value; a window has its number of lanes.
    """
    if isinstance(node.value, bool):
        return node.value
    if not isinstance(node, MappingNode):
        report_wrong_type("shuffle", node, bool | Window, problems)
        return None
    good = decode(node, Window, f"data.{which}.shuffle", problems)
    if len(good) < len(Window.__struct_fields__) or source is None or batch is None:
        return None
    window = Window(**good)
    spans = {key: value.span for key, value in node}
    if not source.declaration.pieces:
        problems.add(
            f"a window is for {WITH_PIECES} sources, not for {source.text}",
            section.keys["shuffle"].span,
            "shuffle: true gives a new order of all rows, which are in memory",
        )
        return None
    if section.get("split") is not None and section.entries["split"].value is not None:
        problems.add(
            "'split' permutes all rows, and of a source with a window they are not in"
            " memory",
            section.keys["split"].span,
            "write the rows for testing to a file of their own",
        )
        return None
    lanes = window.lanes or min(DEFAULT_LANES, batch)
    if lanes > batch:
        problems.add(
            f"a batch of {batch} has no row for each of {lanes} lanes",
            spans["lanes"],
            "use at most as many lanes as a batch has rows",
        )
        return None
    if window.window < lanes:
        problems.add(
            f"a window of {window.window} has no row for each of {lanes} lanes",
            spans["window"],
            "the window is that of all lanes together: each has its part of it",
        )
        return None
    return structs.replace(window, lanes=lanes)
