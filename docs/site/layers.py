"""Writes the reference of `placer.layers`: its functions by the family of their ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.site.pages import Page, front_matter
from placer import layers
from tools.op_reference import FAMILIES, INSERTED, declared, page_of

_OTHERS: Final = "others"
_EXTRA: Final = {
    "cross_entropy": "loss",
    "mean": "reduction",
    "mean_metric": "metric",
    "metric": "metric",
    "sparse_embedding": "embedding",
    "Embedding": "embedding",
    "CountFilterEntry": "embedding",
    "ProbabilityEntry": "embedding",
    "ShowClickEntry": "embedding",
}
"""The families of functions that are not named like their op."""
_INTRODUCTION: Final = """
# Layers

Each function of `placer.layers` adds one op to the current program, at the current place. It
returns a `Variable`, or several. [Models in Python](../python.md) explains its use.
"""


def page() -> Page:
    """Return the page of all functions."""
    return Page("layers", "\n".join(_lines()))


def _lines() -> Iterator[str]:
    yield front_matter(
        "The functions of placer.layers by family: each adds one op to a program."
    )
    yield _INTRODUCTION
    family_of = {each.kind: page_of(each) for each in declared()} | _EXTRA
    # Ops in the order of their families, then other functions.
    order = [*family_of, *layers.__all__]
    in_order = sorted(layers.__all__, key=order.index)
    for family in (*FAMILIES, _OTHERS):
        names = [n for n in in_order if _family(family_of, n) == family]
        if family != _OTHERS and names:
            yield f"## {FAMILIES[family].title}\n\nOps: [{family}](../ops/{family}.md)\n"
        elif names:
            yield "## Inputs, parameters and JAX functions\n"
        if names:
            yield "```{eval-rst}"
            for name in names:
                is_class = isinstance(getattr(layers, name), type)
                kind = "autoclass" if is_class else "autofunction"
                yield f".. {kind}:: placer.layers.{name}"
                yield from ("   :members:",) * is_class
            yield "```\n"


def _family(family_of: dict[str, str], name: str) -> str:
    family = family_of.get(name, _OTHERS)
    return _OTHERS if family == INSERTED else family
