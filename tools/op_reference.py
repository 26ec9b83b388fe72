"""Writes the pages of the op reference, one per family of ops, from their declarations."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from math import inf
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import yaml

from placer import ops
from placer.compiler.graph.graph import Op, Value
from placer.compiler.graph.text import print_op
from placer.ops.arrays import (
    axes,
    index,
    ordering,
    padding,
    reduction,
    scan,
    shape,
    slicing,
)
from placer.ops.attributes import complete
from placer.ops.composite import Composite, CompositeUse, Part
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import Attr, Case, Declaration, Signature
from placer.ops.elementwise import activation, arithmetic, cast, comparison, power
from placer.ops.image import convolution, pooling
from placer.ops.linear import dense, embedding, position, product
from placer.ops.losses import distance, loss, metric, sampling
from placer.ops.normalization import batch_norm, normalization
from placer.ops.operand import Operand
from placer.ops.registry import FAMILY_OF
from placer.ops.sequence import attention, multi_head_attention, recurrent
from placer.ops.special import (
    call,
    constant,
    gradient,
    inserted,
    random,
    user_metric,
)
from placer.place.types import TensorType
from placer.plan.settings.training.metrics import FINALIZERS

_INTRODUCTION = """\
---
description: "All ops of a model by family: operands, attributes, formulas and types."
---
# Ops

An op in a spec is one line: `name`, `op`, `in` (one name or a list), the attributes of the
op, and optionally `place`. Each op is also a function of [`placer.layers`](../api/layers.md).

{table}

## How to read an entry

Each entry starts with an example, whose values are named like the operands. Its last
table shows more examples with their types, and how the compiler treats them.

A dimension of a type is an int or `batch`, the number of rows of the *global* batch. In
formulas, `dx` is the cotangent of `x`, and `dy` the cotangent of the result.

- **Batch rule**: how the op treats the rows of a batch that is split over nodes.
  `rows`: row i of the result depends only on row i of the operands, so the result is
  split as well. `reduce`: the op sums over the batch, so each node has a partial sum. A
  mean divides each partial sum by the rows of the global batch. `whole`: the op mixes
  rows, so its operands are gathered first.
- **Sums pass**: operands in which the op is linear. If such an operand is a partial sum,
  each node applies the op to its partial sum. For other operands, partial sums are added
  first. Operands in the same parentheses must be partial sums together.
- **Backward keeps**: the residuals, which the gradient needs besides the cotangents.
  Operands are given by name, other values by type. The forward of an op is computed once.

```{{toctree}}
:hidden:

{pages}
```
"""

_PAGE = """\
---
description: "{summary}"
---
# {title}

{summary} [How to read an entry](index.md#how-to-read-an-entry).
"""

_METRIC = """\
This op is a metric: list it in `train.metrics`. It has no gradient, and no op can use its
result, a statistic that is summed over nodes and batches. The finalizer *{}* computes
the reported number: {}."""

INSERTED: Final = "inserted"
"""The page of the ops that only the compiler inserts."""


class _Family(NamedTuple):
    title: str
    summary: str
    modules: tuple[ModuleType, ...]
    composites: tuple[str, ...] = ()


FAMILIES: Final = {
    "dense": _Family(
        "Dense layers and products",
        "Fully connected layers and products of arrays.",
        (dense, product),
    ),
    "convolution": _Family(
        "Convolution",
        "Convolutions and transposed convolutions, with the channels last.",
        (convolution,),
    ),
    "pooling": _Family(
        "Pooling",
        "The maximum or the mean of windows, with the channels last.",
        (pooling,),
    ),
    "normalization": _Family(
        "Normalization",
        "Normalization within a row, or over the rows of a batch.",
        (normalization, batch_norm),
        ("batch_norm",),
    ),
    "recurrent": _Family(
        "Recurrent layers", "Recurrent layers over sequences.", (recurrent,)
    ),
    "attention": _Family(
        "Attention layers",
        "Scaled dot-product attention with several heads.",
        (attention, multi_head_attention),
    ),
    "embedding": _Family(
        "Embeddings and positions",
        "Lookups in tables by id, and positions of sequences.",
        (embedding, position),
    ),
    "activation": _Family(
        "Activation and dropout",
        "Activation functions, which layers also take as an attribute, and dropout.",
        (activation,),
        ("dropout",),
    ),
    "elementwise": _Family(
        "Elementwise",
        "Arithmetic, powers, comparisons and casts of each element.",
        (arithmetic, power, comparison, cast),
    ),
    "shape": _Family(
        "Shape",
        "Changes of shapes and dimensions, slices and padding.",
        (shape, axes, slicing, padding),
    ),
    "selection": _Family(
        "Selection", "Elements by index and by rank.", (index, ordering)
    ),
    "reduction": _Family(
        "Reduction",
        "Sums, means, extremes and cumulative sums over dimensions.",
        (reduction, scan),
    ),
    "loss": _Family(
        "Loss",
        "Losses of labels and targets, and losses over sampled classes.",
        (loss, distance, sampling),
        ("nce", "sampled_softmax"),
    ),
    "metric": _Family(
        "Metrics",
        "Numbers that a run reports and does not train on.",
        (metric, user_metric),
    ),
    "special": _Family(
        "Special",
        "Constants and stopped gradients.",
        (constant, gradient, random, call),
    ),
    INSERTED: _Family(
        "Inserted ops",
        "Ops that only the compiler inserts. The text of a graph shows them"
        " (`placer show BUILD --graph`); a spec cannot name them.",
        (inserted,),
    ),
}
"""The families by the names of their pages."""

_MODULES: Final = {
    module.__name__: name
    for name, family in FAMILIES.items()
    for module in family.modules
}


def declared() -> list[Declaration | Composite]:
    """Return all ops, those that become several ops of the graph last."""
    return [*map(ops.find, ops.kinds()), *COMPOSITES]


def page_of(declaration: Declaration | Composite) -> str:
    """Return the name of the page of an op, such as "dense"."""
    if isinstance(declaration, Composite):
        (page,) = (n for n, f in FAMILIES.items() if declaration.kind in f.composites)
        return page
    if declaration.inserted:
        return INSERTED
    return _MODULES[FAMILY_OF[declaration.kind]]


def pages() -> dict[str, str]:
    """Return the pages in Markdown by their names: a page per family, and `index`."""
    ops_of: dict[str, list[Declaration | Composite]] = {name: [] for name in FAMILIES}
    for declaration in declared():
        ops_of[page_of(declaration)].append(declaration)
    rows = [
        (
            f"[{FAMILIES[name].title}]({name}.md)",
            " · ".join(f"[{d.kind}]({name}.md#{d.kind})" for d in of),
        )
        for name, of in ops_of.items()
    ]
    index = _INTRODUCTION.format(
        table="\n".join(_table(("family", "ops"), rows)), pages="\n".join(FAMILIES)
    )
    return {"index": index} | {name: _page(name, of) for name, of in ops_of.items()}


def _page(name: str, declarations: Sequence[Declaration | Composite]) -> str:
    family = FAMILIES[name]
    language = "text" if name == INSERTED else "yaml"
    return "\n".join(
        [
            _PAGE.format(title=family.title, summary=family.summary),
            *(_section(declaration, language) for declaration in declarations),
        ]
    )


def example(declaration: Declaration | Composite) -> str:
    """Return the first case of an op, as a line of a spec or of a graph's text."""
    kind, case = declaration.kind, declaration.cases[0]
    types = [TensorType.parse(word) for word in case.operands]
    names = [re.sub(r"\W", "", name) for name in _names(declaration, types)]
    if isinstance(declaration, Declaration) and declaration.inserted:
        outs = declaration.infer(types, complete(declaration, case.attrs))
        results = map(Value, declaration.result_names(len(outs)), outs)
        return print_op(Op(kind, tuple(names), tuple(results), case.attrs))
    created = {o.name for o in declaration.operands if o.parameter}
    operands = [name for name in names if name not in created]
    line: dict[str, Any] = {"name": f"{kind}_1", "op": kind}
    line |= {"in": operands if len(operands) > 1 else operands[0]} if operands else {}
    attrs = {a.name: case.attrs.get(a.name, a.example) for a in declaration.attrs}
    line |= {name: value for name, value in attrs.items() if value is not None}
    entry: str = yaml.safe_dump(
        line, default_flow_style=True, sort_keys=False, width=inf
    )
    return entry.rstrip()


def _section(declaration: Declaration | Composite, language: str) -> str:
    lines = [f"## {declaration.kind}", "", declaration.doc, ""]
    if isinstance(declaration, Declaration) and declaration.finalizer is not None:
        final = declaration.finalizer
        lines += [_METRIC.format(final, FINALIZERS[final]), ""]
    lines += [f"```{language}", example(declaration), "```", ""]
    if declaration.formula:
        lines += [f"Formula: `{declaration.formula}`.", ""]
    if declaration.source:
        lines += [f"Source: {declaration.source}.", ""]
    if declaration.operands:
        rows = [(f"`{o.name}`", _operand(o)) for o in declaration.operands]
        lines += [*_table(("operand", "meaning"), rows), ""]
    if declaration.attrs:
        attrs = [
            (f"`{a.name}`", _type(a), _default(a), a.doc) for a in declaration.attrs
        ]
        header = ("attribute", "type", "default", "meaning")
        lines += [*_table(header, attrs), ""]
    if isinstance(declaration, Declaration):
        lines += _results(declaration)
    if isinstance(declaration, Composite):
        lines += [*_expansion(declaration), ""]
    else:
        lines += [*_cases(declaration), ""]
    return "\n".join(lines)


def _results(declaration: Declaration) -> list[str]:
    """Return the names of the results, if there are several."""
    if not declaration.variadic and len(declaration.results) == 1:
        return []
    results = declaration.result_names(
        2 if declaration.variadic else len(declaration.results)
    )
    names = ", ".join(f"`name.{result}`" for result in results)
    more = ", …" if declaration.variadic else ""
    return [f"Results: {names}{more}, or the names in `out`.", ""]


def _expansion(composite: Composite) -> list[str]:
    """Return the ops that a composite expands to, for each of its cases."""
    lines = ["Ops of the graph, for `n` applied to `x`:", ""]
    for case in composite.cases:
        types = [TensorType.parse(word) for word in case.operands]
        attrs = complete(composite, case.attrs)
        operand_types = _codes(types)
        if composite.creates is not None:
            types += [p.type for p in composite.parameters(types, attrs)]
        composite.infer(types, attrs)
        names = [
            o.name if not o.parameter else f"n.{o.name}" for o in composite.operands
        ]
        parts = composite.expand(CompositeUse("n", names, types, attrs, 0))
        written = ", ".join(f"`{k}: {_yaml(v)}`" for k, v in case.attrs.items())
        shown = " · ".join(_part(part) for part in parts)
        lines.append(f"- {operand_types}{' ' + written if written else ''}: {shown}")
    return lines


def _part(part: Part) -> str:
    left = ", ".join(f"%n{suffix}" for suffix in part.results)
    right = f"{part.kind}({', '.join(f'%{name}' for name in part.operands)})"
    return f"`{left} = {right}`" if left else f"`{right}`"


def _operand(operand: Operand) -> str:
    created = ["a parameter that the op creates"] if operand.parameter else []
    return "; ".join([operand.doc, *created, *operand_notes(operand)])


def operand_notes(operand: Operand) -> list[str]:
    """Return notes on an operand, to follow its description."""
    notes = {"optional": operand.optional, "one or more": operand.variadic}
    return [note for note, applies in notes.items() if applies]


def _type(attr: Attr) -> str:
    if attr.choices:
        return ", ".join(f"`{choice}`" for choice in attr.choices)
    return _spell(attr.type)


def _spell(kind: Any) -> str:
    """Return a Python type in the words of YAML."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_spell(k) for k in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(f"`{word}`" for word in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {_spell(*get_args(kind))}"
    return "null" if kind is type(None) else str(kind.__name__)


def _default(attr: Attr) -> str:
    if attr.required:
        return "required"
    return f"`{_yaml(attr.default)}`"


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return "null" if value is None else str(value)


def _cases(declaration: Declaration) -> list[str]:
    gradient = declaration.differentiable
    header = ["operands", "attributes", "result", "batch rule", "sums pass"]
    if gradient:
        header.append("backward keeps")
    rows = [list(_case_cells(declaration, case)) for case in declaration.cases]
    return _table(header, [row if gradient else row[:-1] for row in rows])


def _case_cells(declaration: Declaration, case: Case) -> Iterator[str]:
    operands = [TensorType.parse(word) for word in case.operands]
    attrs = complete(declaration, case.attrs)
    names = _names(declaration, operands)
    yield _codes(operands) or "none"
    yield ", ".join(f"`{k}: {_yaml(v)}`" for k, v in case.attrs.items())
    yield _codes(declaration.infer(operands, attrs))
    split = any(t.has_rows for t in operands)
    yield f"`{declaration.batch_rule(operands, attrs)}`" if split else "no rows"
    groups = declaration.linear(operands, attrs)
    yield (
        " ".join(f"({', '.join(names[i] for i in group)})" for group in groups) or "no"
    )
    saved = [f"`{names[i]}`" for i in declaration.saves(operands, attrs)]
    kept = [f"`{t}`" for t in declaration.residuals(operands, attrs)]
    yield ", ".join([*saved, *kept]) or "nothing"


def _names(signature: Signature, types: Sequence[TensorType]) -> list[str]:
    if signature.operand_names is not None:
        return list(signature.operand_names(types))
    names = [o.name for o in signature.operands]
    if signature.operands and signature.operands[-1].variadic:
        return [f"{names[-1]}[{i}]" for i in range(len(types))]
    return names[: len(types)]


def _codes(types: Sequence[TensorType]) -> str:
    return ", ".join(f"`{t}`" for t in types)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    ]
