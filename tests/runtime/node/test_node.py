"""The calls of a node program, which a node or one of its parts does."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, cast

from placer.runtime.node.asynchronous_calls import AsynchronousCalls
from placer.runtime.node.batch_calls import BatchCalls
from placer.runtime.node.call_of_part import call_of_part
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.node import Node
from placer.runtime.node.row_calls import RowCalls
from placer.runtime.timeline.traced_node import methods

PARTS = (BatchCalls, Microbatches, AsynchronousCalls, RowCalls)


def test_every_call_is_documented_with_an_example() -> None:
    for name in methods():
        assert f"node.{name}(" in (inspect.getdoc(getattr(Node, name)) or ""), name


def test_every_call_that_a_part_documents_is_one_of_a_node() -> None:
    for part in PARTS:
        found = {
            name
            for name, method in vars(part).items()
            if f"node.{name}(" in (inspect.getdoc(method) or "")
        }
        assert len(found) > 3
        assert found <= methods()


def test_a_call_of_a_part_has_its_signature_and_goes_to_the_part_of_this_node() -> None:
    class Part:
        def __init__(self, sign: int) -> None:
            self.sign = sign

        def scale(self, value: int, *, factor: int = 2) -> int:
            """Scale a value."""
            return self.sign * value * factor

    scale = call_of_part("part", Part.scale)
    assert inspect.signature(scale) == inspect.signature(Part.scale)
    assert scale.__doc__ == "Scale a value."
    for sign in (1, -1):
        node = cast(Any, SimpleNamespace(part=Part(sign)))
        assert scale(node, 3, factor=5) == 15 * sign
