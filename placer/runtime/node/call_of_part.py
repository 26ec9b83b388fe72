"""Methods of `Node` that forward to one of its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from placer.runtime.node.node import Node

Arguments = ParamSpec("Arguments")
Part = TypeVar("Part")
Result = TypeVar("Result")


def call_of_part(
    part: str, method: Callable[Concatenate[Part, Arguments], Result]
) -> Callable[Concatenate[Node, Arguments], Result]:
    """Return a method of `Node` that forwards to a method of a part.

    The method keeps the signature and the docstring of the part's method.

    Args:
        part: the attribute of the node that holds the part.
        method: the method of the part's class.

    Example:
        pull = call_of_part("asynchronous_calls", AsynchronousCalls.pull)
    """
    find = attrgetter(f"{part}.{method.__name__}")

    @functools.wraps(method)
    def call(
        node: Node, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        result: Result = find(node)(*args, **kwargs)
        return result

    return call
