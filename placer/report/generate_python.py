"""placer/layers.py and placer/optimizer.py, made from the declarations.

`python -m placer.report.generate_python` writes both; a test holds the files against
these texts.
"""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, Literal, Union, get_args, get_origin

import placer
from placer.config import optimizers
from placer.front.fluid import OWN, RENAMED, SPELLINGS
from placer.ops.composite import Composite
from placer.ops.declaration import Attr, Declaration, Operand
from placer.spec.op_kinds import kinds

WIDTH = 88

_LAYERS = '''\
"""The ops as functions: each records one op of the program, under the open guards.

Written by `python -m placer.report.generate_python` from the declarations of the ops:
do not edit. docs/ops.md says more of each, docs/python.md how they are used.
"""

# Names are those of a spec, also where Python has a function of that name.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

'''

_OPTIMIZERS = '''\
"""The update rules: `SGD(0.1).minimize(loss)`.

Written by `python -m placer.report.generate_python` from the rules in
`placer.config.optimizers`: do not edit. The rules are those of optax, with its defaults.
"""

# The names are those of Fluid, where these are classes.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from placer.front.training import Optimizer, of_rule

__all__ = [
{names}]

Rate = float | Mapping[str, Any]
"""A number, or a schedule such as `{{"cosine": {{"init": 0.01, "steps": 1000}}}}`."""
'''

_RATE = """\
    learning_rate: a number, or a schedule as in docs/spec.md.
    match: a glob over parameter names; without it, all that are left.
    clip: a bound on this optimizer's gradients, as {"global_norm": 1.0}.
    update: how gradients meet."""


def layers_text() -> str:
    """placer/layers.py."""
    declared = [d for d, *_ in kinds().values() if _name(d) not in OWN]
    aliases = _aliases(declared)
    names = sorted([*(_name(d) for d in declared), *OWN, "call", "parameter"])
    parts = [
        _LAYERS + _imports(),
        "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n\n",
        "Params = Mapping[str, Variable] | None\n",
        '"""Parameters of other ops to use instead of own ones, by operand."""\n',
        *(_alias(name, text) for text, name in aliases.items()),
    ]
    return "".join(parts) + "".join(_function(d, aliases) for d in declared)


def optimizers_text() -> str:
    """placer/optimizer.py."""
    rules = [optimizers.find(name) for name in optimizers.names()]
    classes = sorted(
        map(_class, optimizers.names()), key=lambda c: (not c.isupper(), c)
    )
    names = "".join(f'    "{name}",\n' for name in classes)
    return _OPTIMIZERS.format(names=names) + "".join(map(_rule, rules))


def _imports() -> str:
    own = ["respelt", *OWN]
    return (
        f"from placer.front.fluid import {', '.join(sorted(own))}\n"
        "from placer.front.ops import one, several\n"
        "from placer.front.special_ops import call, parameter\n"
        "from placer.front.variable import Variable\n\n"
    )


def _name(declaration: Declaration | Composite) -> str:
    return RENAMED.get(declaration.kind, declaration.kind)


def _function(declaration: Declaration | Composite, aliases: dict[str, str]) -> str:
    operands = [o for o in declaration.operands if not o.parameter]
    attrs = declaration.attrs
    needed = [f"{o.name}: {_operand_type(o)}" for o in operands if not o.optional]
    needed += [f"{a.name}: {_type(a, aliases)}" for a in attrs if a.required]
    others = [f"{o.name}: Variable | None = None" for o in operands if o.optional]
    others += [
        f"{a.name}: {_type(a, aliases)} = {_literal(a.default)}"
        for a in attrs
        if not a.required
    ]
    makes = any(o.parameter for o in declaration.operands)
    many = isinstance(declaration, Declaration) and (
        declaration.variadic or len(declaration.results) > 1
    )
    others += ["params: Params = None"] if makes else []
    others += ["out: Sequence[str] | None = None"] if many else []
    others += ["name: str | None = None"]
    returns = "tuple[Variable, ...]" if many else "Variable"
    arguments = [
        json.dumps(declaration.kind),
        _dict([o.name for o in operands]),
        _dict([a.name for a in attrs]),
        "name",
        *(["params"] if makes else ["None"] if many else []),
        *(["out"] if many else []),
    ]
    lines = ["", ""]
    if declaration.kind in SPELLINGS:
        lines.append(f'@respelt("{declaration.kind}")')
    lines += [f"def {_name(declaration)}("]
    lines += [f"    {each}," for each in (*needed, "*", *others)]
    lines += [f") -> {returns}:", *_docstring(declaration, operands)]
    lines += _return("several" if many else "one", arguments)
    return "\n".join(lines) + "\n"


def _docstring(
    declaration: Declaration | Composite, operands: Sequence[Operand]
) -> list[str]:
    lines = _wrapped(f'"""{declaration.doc}', 4, 4)
    if declaration.formula:
        lines += ["", *_wrapped(declaration.formula, 4, 8)]
    if operands or declaration.attrs:
        lines.append("")
    for each in operands:
        more = ["optional"] if each.optional else []
        more += ["one or more"] if each.variadic else []
        doc = "; ".join([each.doc or "any", *more])
        lines += _wrapped(f"{each.name}: {doc}.", 4, 8)
    for attr in declaration.attrs:
        lines += _wrapped(f"{attr.name}: {attr.doc}.", 4, 8)
    made = [f"`{o.name}`" for o in declaration.operands if o.parameter]
    if made:
        lines += ["", *_wrapped(f"Parameters: {', '.join(made)}.", 4, 4)]
    if isinstance(declaration, Declaration) and declaration.final is not None:
        told = "A metric: the program's `metrics` name it, and no op takes it."
        lines += ["", *_wrapped(told, 4, 4)]
    if isinstance(declaration, Declaration) and len(declaration.results) > 1:
        named = ", ".join(f"`{result}`" for result in declaration.results)
        lines += ["", *_wrapped(f"Returns: {named}.", 4, 4)]
    lines = [line.replace("\\", "\\\\") for line in lines]
    if len(lines) == 1 and len(lines[0]) + 3 <= WIDTH:
        return [f'{lines[0]}"""']
    return [*lines, '    """']


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    return wrap(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _return(function: str, arguments: Sequence[str]) -> list[str]:
    flat = f"    return {function}({', '.join(arguments)})"
    if len(flat) <= WIDTH and "\n" not in flat:
        return [flat]
    items = [indent(f"{argument},", " " * 8) for argument in arguments]
    return [f"    return {function}(", *items, "    )"]


def _dict(names: Sequence[str]) -> str:
    """The names with the arguments so called, on one line if it fits."""
    pairs = [f'"{name}": {name}' for name in names]
    flat = "{" + ", ".join(pairs) + "}"
    if len(flat) + 9 <= WIDTH:
        return flat
    return "{\n" + "".join(f"    {pair},\n" for pair in pairs) + "}"


def _operand_type(operand: Operand) -> str:
    return "Sequence[Variable]" if operand.variadic else "Variable"


def _type(attr: Attr, aliases: dict[str, str]) -> str:
    text = _spelt(attr)
    return aliases.get(text, text)


def _spelt(attr: Attr) -> str:
    if attr.choices:
        return f"Literal[{', '.join(map(json.dumps, attr.choices))}]"
    return _spell(attr.type)


def _spell(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        parts = dict.fromkeys(map(_spell, get_args(kind)))
        if "float" in parts:
            parts.pop("int", None)
        return " | ".join(parts)
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(json.dumps, get_args(kind)))}]"
    if get_origin(kind) is list:
        return f"Sequence[{_spell(*get_args(kind))}]"
    return "None" if kind is type(None) else str(kind.__name__)


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _aliases(declared: Iterable[Declaration | Composite]) -> dict[str, str]:
    """Names for long types that several attributes have: the first one's name."""
    found = [(a.name, _spelt(a)) for d in declared for a in d.attrs]
    often = Counter(text for _, text in found)
    aliases: dict[str, str] = {}
    for name, text in found:
        alias = name.title().replace("_", "")
        if "Literal" in text and often[text] > 1 and alias not in aliases.values():
            aliases.setdefault(text, alias)
    return aliases


def _alias(name: str, text: str) -> str:
    flat = f"{name} = {text}"
    if len(flat) <= WIDTH:
        return f"{flat}\n"
    inner = text.removeprefix("Literal[").removesuffix("]")
    assert f"Literal[{inner}]" == text, text
    words = "".join(f"    {word},\n" for word in inner.split(", "))
    return f"{name} = Literal[\n{words}]\n"


def _class(rule: str) -> str:
    special = {"sgd": "SGD", "rmsprop": "RMSProp", "adamw": "AdamW"}
    return special.get(rule, rule.title())


def _rule(rule: optimizers.Rule) -> str:
    hyper = [
        f"{key}: {each.type.__name__} = {each.type(each.default)!r}"
        for key, each in rule.hyper.items()
    ]
    parameters = [
        "learning_rate: Rate",
        "*",
        *hyper,
        "match: str | None = None",
        "clip: Mapping[str, float] | None = None",
        'update: Literal["sync"] = "sync"',
    ]
    settings = ["learning_rate", *rule.hyper, "match", "clip"]
    lines = ["", "", f"def {_class(rule.name)}("]
    lines += [f"    {each}," for each in parameters]
    doc = rule.doc[0].upper() + rule.doc[1:]
    lines += [") -> Optimizer:", *_wrapped(f'"""{doc}.', 4, 4), "", _RATE]
    for key, each in rule.hyper.items():
        lines += _wrapped(f"{key}: {each.doc}.", 4, 8)
    lines.append('    """')
    lines += _return("of_rule", [json.dumps(rule.name), _dict([*settings, "update"])])
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Write both files into the package that lies in `folder`."""
    for name, text in (
        ("layers.py", layers_text()),
        ("optimizer.py", optimizers_text()),
    ):
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(placer.__path__[0]))
