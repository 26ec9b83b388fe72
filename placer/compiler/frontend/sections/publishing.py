"""Reads the key `publish` of the section `train`."""

from __future__ import annotations

from typing import Any

from placer.compiler.frontend.sections.evaluations import check_interval
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.plan.settings.evaluation_and_stopping import Publishing


def read_publishing(
    node: SpecNode, is_stream: bool, problems: Problems
) -> dict[str, Any]:
    """Return the valid fields of `Publishing`.

    Args:
        node: The value of the key.
        is_stream: Whether `data.train` is a stream.
        problems: Collects the errors.
    """
    good = decode(node, Publishing, "train.publish", problems)
    check_interval(node, good, Publishing, problems)
    if not isinstance(node, MappingNode):
        return good
    every, folder = node.get("every"), node.get("folder")
    if every is not None and good.get("every") == "pass" and not is_stream:
        problems.add(
            "'every: pass' needs a stream, and data.train is no stream",
            every.span,
            "write epoch, or add 'stream' to data.train",
        )
    if folder is not None and good.get("folder") == "":
        problems.add(
            "'folder' is empty", folder.span, "write a name, such as folder: serving"
        )
    return good
