"""docs/ops.md, made from the ops' declarations.

`python -m placer.report.op_reference > docs/ops.md` writes it; a test holds the file
against this text.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from placer import ops
from placer.config.metrics import FINALS
from placer.ops.attributes import complete
from placer.ops.composite import Composite, Part, Written
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import Attr, Case, Declaration, Operand
from placer.types import TensorType

_INTRODUCTION = """\
# Ops

Generated from the declarations in `placer/ops`; do not edit.
`python -m placer.report.op_reference > docs/ops.md` writes it again.

An op in a spec is one line: `name`, `op`, `in` (one name or a list), the attributes
below, and `place` where it has its own. A dimension of a type is an int or `batch`, the
rows of the *global* batch.

The table of each op shows what its declaration answers for some operands.

- **Batch rule**: what the op makes of operands that are split over the batch. `rows`:
  row i of the result depends on row i of the operands only, so a split operand gives a
  split result. `reduce`: it sums over the batch, so each place has a part of the sum. A
  mean divides each part by the rows of the global batch. `whole`: it mixes rows, so its
  operands are gathered first.
- **Sums pass**: operands in which the op is linear. A value that is the sum over the
  places passes through them as it is; elsewhere it is summed up first. Operands in one
  bracket pass together.
- **Backward keeps**: what the gradient needs beside the cotangent. The forward of an op
  is run once. Operands are named; what is kept beside them has its type.
"""

_METRIC = """\
A metric: it is named in `train.metrics`, has no gradient, and no op takes its result, a
statistic that is added up over places and batches. What is told is its *{}*: {}."""

_INSERTED = """\
## Ops that the compiler puts in

They stand in the graph's text (`placer compile --print-after=PASS`) and in the node
programs. A spec does not name them.
"""


def text() -> str:
    """The whole op reference, in Markdown."""
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


def _section(declaration: Declaration | Composite, heading: str, language: str) -> str:
    lines = [f"{heading} {declaration.kind}", "", declaration.doc, ""]
    if isinstance(declaration, Declaration) and declaration.final is not None:
        final = declaration.final
        lines += [_METRIC.format(final, FINALS[final]), ""]
    lines += [f"```{language}", declaration.example, "```", ""]
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
        lines += [*_put_together(declaration), ""]
    else:
        lines += [*_cases(declaration), ""]
    return "\n".join(lines)


def _results(declaration: Declaration) -> list[str]:
    """What several results are called."""
    if not declaration.variadic and len(declaration.results) == 1:
        return []
    named = declaration.named(2 if declaration.variadic else len(declaration.results))
    names = ", ".join(f"`name.{result}`" for result in named)
    more = ", …" if declaration.variadic else ""
    return [f"Results: {names}{more}, or what `out` names them.", ""]


def _put_together(composite: Composite) -> list[str]:
    """The ops of the graph that a composite is, for each of its cases."""
    lines = ["In the graph, for `x`:", ""]
    for case in composite.cases:
        types = [TensorType.parse(word) for word in case.operands]
        attrs = complete(composite, case.attrs)
        given = _codes(types)
        if composite.parameters is not None:
            types += [made.type for made in composite.parameters(types, attrs)]
        composite.infer(types, attrs)
        names = [
            o.name if not o.parameter else f"n.{o.name}" for o in composite.operands
        ]
        parts = composite.parts(Written("n", names, types, attrs, 0))
        written = ", ".join(f"`{k}: {_yaml(v)}`" for k, v in case.attrs.items())
        shown = " · ".join(_part(part) for part in parts)
        lines.append(f"- {given}{' ' + written if written else ''}: {shown}")
    return lines


def _part(part: Part) -> str:
    left = ", ".join(f"%n{suffix}" for suffix in part.results)
    right = f"{part.kind}({', '.join(f'%{name}' for name in part.operands)})"
    return f"`{left} = {right}`" if left else f"`{right}`"


def _operand(operand: Operand) -> str:
    words = [operand.doc]
    if operand.parameter:
        words.append("a parameter that the op makes")
    if operand.optional:
        words.append("optional")
    if operand.variadic:
        words.append("one or more")
    return "; ".join(words)


def _type(attr: Attr) -> str:
    if attr.choices:
        return ", ".join(f"`{choice}`" for choice in attr.choices)
    return _spell(attr.type)


def _spell(kind: Any) -> str:
    """A Python type as a reader of YAML knows it."""
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
    rows = [list(_answers(declaration, case)) for case in declaration.cases]
    return _table(header, [row if gradient else row[:-1] for row in rows])


def _answers(declaration: Declaration, case: Case) -> Iterator[str]:
    operands = [TensorType.parse(word) for word in case.operands]
    attrs = complete(declaration, case.attrs)
    names = _names(declaration, operands)
    yield _codes(operands) or "none"
    yield ", ".join(f"`{k}: {_yaml(v)}`" for k, v in case.attrs.items())
    yield _codes(declaration.infer(operands, attrs))
    split = any(t.has_rows for t in operands)
    yield f"`{declaration.batch(operands, attrs)}`" if split else "no rows"
    groups = declaration.linear(operands, attrs)
    yield (
        " ".join(f"({', '.join(names[i] for i in group)})" for group in groups) or "no"
    )
    saved = [f"`{names[i]}`" for i in declaration.saves(operands, attrs)]
    kept = [f"`{t}`" for t in declaration.residuals(operands, attrs)]
    yield ", ".join([*saved, *kept]) or "nothing"


def _names(declaration: Declaration, types: Sequence[TensorType]) -> list[str]:
    if declaration.roles is not None:
        return list(declaration.roles(types))
    names = [o.name for o in declaration.operands]
    if declaration.operands and declaration.operands[-1].variadic:
        return [f"{names[-1]}[{i}]" for i in range(len(types))]
    return names


def _codes(found: Sequence[TensorType]) -> str:
    return ", ".join(f"`{t}`" for t in found)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    ]


if __name__ == "__main__":
    print(text(), end="")
