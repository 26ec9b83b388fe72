"""Generates docs/reference/ops.md, the op reference, from the declarations of the ops.

`python -m tools.op_reference > docs/reference/ops.md` writes it. A test checks that the
file is up to date.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from placer import ops
from placer.compiler.graph.graph import Op, Value
from placer.compiler.graph.text import print_op
from placer.ops.attributes import complete
from placer.ops.composite import Composite, CompositeUse, Part
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import Attr, Case, Declaration, Signature
from placer.ops.operand import Operand
from placer.place.types import TensorType
from placer.plan.settings.training.metrics import FINALIZERS

_INTRODUCTION = """\
# Ops

Generated from the declarations in `placer/ops`; do not edit.
`python -m tools.op_reference > docs/reference/ops.md` regenerates it.

An op in a spec is one line: `name`, `op`, `in` (one name or a list), the attributes
below, and optionally `place`. A dimension of a type is an int or `batch`, the number of
rows of the *global* batch. In formulas, `dx` is the cotangent of `x`, and `dy` the
cotangent of the result.

Each section starts with an example, whose values are named like the operands. Its last
table shows more examples with their types, and how the compiler treats them.

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
"""

_METRIC = """\
This op is a metric: list it in `train.metrics`. It has no gradient, and no op can use its
result, a statistic that is summed over nodes and batches. The finalizer *{}* computes
the reported number: {}."""

_INSERTED = """\
## Ops that only the compiler inserts

These ops appear in the text of the graph (`placer compile --print-after=PASS`) and in
node programs. A spec cannot name them.
"""


def text() -> str:
    """Return the op reference, in Markdown."""
    declarations = [ops.find(kind) for kind in ops.kinds()]
    written: list[Declaration | Composite] = [
        *(d for d in declarations if not d.inserted),
        *COMPOSITES,
    ]
    inserted = [d for d in declarations if d.inserted]
    parts = [
        _INTRODUCTION,
        _contents(written),
        *(_section(d, "##", "yaml") for d in written),
        _INSERTED,
        *(_section(d, "###", "text") for d in inserted),
    ]
    return "\n".join(parts)


def _contents(declarations: Sequence[Declaration | Composite]) -> str:
    return " · ".join(f"[{d.kind}](#{d.kind})" for d in declarations) + "\n"


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


def _section(declaration: Declaration | Composite, heading: str, language: str) -> str:
    lines = [f"{heading} {declaration.kind}", "", declaration.doc, ""]
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


if __name__ == "__main__":
    print(text(), end="")
