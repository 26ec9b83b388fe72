"""Reads the key `shuffle` of a source: true, false, or a window."""

from __future__ import annotations

from placer.compiler.frontend.yaml.decode import decode, report_wrong_type
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.plan.settings.data.sources import Source
from placer.plan.settings.data.window import DEFAULT_LANES, Window


def read_shuffle(
    node: SpecNode,
    section: MappingNode,
    source: Source | None,
    split: str | None,
    batch: int | None,
    which: str,
    problems: Problems,
) -> bool | Window | None:
    """Read the key; None after an error.

    Args:
        node: The value of the key.
        section: The mapping of the source.
        source: The source; None if it has an error.
        split: The split of the source.
        batch: The number of rows in a batch; None if not known.
        which: `train` or `eval`.
        problems: Collects the errors.

    Returns:
        The value. A window has its number of lanes.
    """
    if isinstance(node.value, bool):
        return node.value
    if not isinstance(node, MappingNode):
        report_wrong_type("shuffle", node, bool | Window, problems)
        return None
    good = decode(node, Window, f"data.{which}.shuffle", problems)
    if len(good) < len(Window.__struct_fields__) or source is None or batch is None:
        return None
    lanes = good["lanes"] or min(DEFAULT_LANES, batch)
    window = Window(good["window"], lanes)
    if mistake := window.check(source, split, batch):
        problems.add_mistake(mistake, section)
        return None
    return window
