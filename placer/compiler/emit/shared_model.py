"""Moves the statements that evaluation and prediction share into a function.

The model then stands once in a program. Only consecutive statements move, so JAX traces the
same equations in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from msgspec import structs

from placer.compiler.emit.code import Call
from placer.compiler.emit.function import Function, Statement
from placer.compiler.emit.names import Names

_VARIABLE = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\.?)")
_FEWEST = 2
"""The smallest number of statements to move into a function."""


@dataclass(frozen=True, slots=True)
class SharedModel:
    """The functions of evaluation and prediction.

    Attributes:
        models: the shared functions.
        others: the other functions: first the evaluation's, then the prediction's.
        renamed: the names of equal functions, with the name of the function that
            replaces them.
    """

    models: Sequence[Function]
    others: Sequence[Function]
    renamed: Mapping[str, str]


def share_model(
    evaluation: Sequence[Function], prediction: Sequence[Function], names: Names
) -> SharedModel:
    """Return the functions of evaluation and prediction, with shared functions.

    Two equal functions become one jitted function. Consecutive statements of two other
    functions become a function without `jax.jit`, which both call.
    """
    equal = {
        theirs.name: ours
        for ours in evaluation
        for theirs in prediction
        if _is_equal(ours, theirs)
    }
    whole = {*equal, *(each.name for each in equal.values())}
    rest = [each for each in (*evaluation, *prediction) if each.name not in whole]
    runs = [
        run
        for ours in evaluation
        for theirs in prediction
        if not {ours.name, theirs.name} & whole
        for run in _common_runs(ours, theirs)
    ]
    last = [each.results[-1] for each in equal.values()]
    last += [run.outputs[-1] for run in runs]
    titles = ["model"] if len(last) == 1 else [f"model_{each}" for each in last]
    new_names = [names.new_name(re.sub(r"\W", "_", title)) for title in titles]
    models: list[Function] = []
    renamed: dict[str, str] = {}
    for name, (theirs, ours) in zip(new_names, equal.items(), strict=False):
        renamed |= {theirs: name, ours.name: name}
        models.append(replace(ours, name=name))
    called = dict(zip(new_names[len(equal) :], runs, strict=True))
    models += [run.function(name) for name, run in called.items()]
    return SharedModel(models, [_with_calls(each, called) for each in rest], renamed)


@dataclass(frozen=True, slots=True)
class _Run:
    """Equal consecutive statements of two functions."""

    statements: Sequence[Statement]
    starts: Mapping[str, int]  # the index of the first statement, by function
    classes: Mapping[str, str]  # of the inputs that are bundles
    inputs: Sequence[str]
    outputs: Sequence[str]  # the variables that either function uses afterwards

    def function(self, name: str) -> Function:

        about = [(name, *each.call.about[1:]) for each in self.statements]
        statements = [
            each._replace(call=structs.replace(each.call, about=new))
            for each, new in zip(self.statements, about, strict=True)
        ]
        parameters = {
            variable: self.classes.get(variable, "") for variable in self.inputs
        }
        return Function(name, parameters, statements, self.outputs, is_jitted=False)


def _common_runs(ours: Function, theirs: Function) -> Iterator[_Run]:
    texts = [[each.text for each in function.statements] for function in (ours, theirs)]
    matcher = SequenceMatcher(a=texts[0], b=texts[1], autojunk=False)
    for start, other, size in matcher.get_matching_blocks():
        statements = ours.statements[start : start + size]
        inputs = _inputs(statements)
        classes = [{v: f.parameters.get(v, "") for v in inputs} for f in (ours, theirs)]
        if size < _FEWEST or classes[0] != classes[1]:
            continue
        assigned = dict.fromkeys(v for each in statements for v in _assigned(each.call))
        later = _used_after(ours, start + size) | _used_after(theirs, other + size)
        in_order = [p for p in (*ours.parameters, *inputs) if p in inputs]
        yield _Run(
            statements,
            {ours.name: start, theirs.name: other},
            classes[0],
            [*dict.fromkeys(in_order)],
            [variable for variable in assigned if variable in later],
        )


def _with_calls(function: Function, called: Mapping[str, _Run]) -> Function:
    """Return a function with its runs replaced by calls of functions with these names."""
    statements = [*function.statements]
    runs = {name: run for name, run in called.items() if function.name in run.starts}
    for name, run in sorted(
        runs.items(), key=lambda each: -each[1].starts[function.name]
    ):
        start = run.starts[function.name]
        stop = start + len(run.statements)
        used = _used_after(function, stop)
        targets = [output if output in used else "_" for output in run.outputs]
        ops = dict.fromkeys(op for each in run.statements for op in each.call.about[1:])
        call = structs.replace(
            run.function(name).call("", targets), about=(function.name, *ops)
        )
        numbers = frozenset(run.function(name).numbers)
        statements[start:stop] = [Statement(call, numbers)]
    return replace(function, statements=statements)


def _is_equal(ours: Function, theirs: Function) -> bool:
    return _content(ours) == _content(theirs)


def _content(function: Function) -> tuple[object, ...]:
    texts = [each.text for each in function.statements]
    parameters = [*function.parameters.items()]
    return parameters, texts, [*function.results], function.jit_options


def _inputs(statements: Sequence[Statement]) -> list[str]:
    """Return the variables that statements read before they assign them."""
    known: set[str] = set()
    used: dict[str, None] = {}
    for each in statements:
        used.update((v, None) for v in _used(each.call) if v not in known)
        known.update(_assigned(each.call))
    return [*used]


def _used_after(function: Function, position: int) -> set[str]:
    later = {v for each in function.statements[position:] for v in _used(each.call)}
    return later | {*function.results}


def _used(call: Call) -> Iterator[str]:
    """Yield the variables that a statement reads; assigning a field reads its variable."""
    yield from call.reads
    for variable, is_field in _targets(call):
        if is_field:
            yield variable


def _assigned(call: Call) -> Iterator[str]:
    return (variable for variable, is_field in _targets(call) if not is_field)


def _targets(call: Call) -> Iterator[tuple[str, bool]]:
    """Yield the variables in the targets, and whether the statement assigns a field."""
    for target in call.targets:
        for match in _VARIABLE.finditer(target):
            if match[1] != "_":
                yield match[1], bool(match[2])
