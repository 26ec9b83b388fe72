"""Reads the key `stream` of a source."""

from __future__ import annotations

from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.plan.settings.data.sources import Source
from placer.plan.settings.data.stream import Stream


def read_stream(
    node: SpecNode,
    section: MappingNode,
    source: Source | None,
    split: str | None,
    remainder: str | None,
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
    if mistake := stream.check(source, split, remainder):
        problems.add_mistake(mistake, section)
        return None
    return stream
