"""A program: what Python code says of one model, as the sections of a spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as Entries
from contextvars import ContextVar
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, Unpack

from placer.callsite import caller, is_cell
from placer.config.checks import shown
from placer.errors import Span, SpecError, did_you_mean
from placer.front.builder import Live
from placer.front.nesting import Entry, blocks
from placer.front.remat import region
from placer.front.results import parameters, results, several
from placer.front.sections import BEFORE_INPUTS, KEYS, OF_TRAIN, Sections
from placer.front.tree import mapping, node, scalar, sequence
from placer.front.variable import Variable
from placer.graph.graph import Op
from placer.graph.model import Model
from placer.place.guard import Called, Said, merged, open_places
from placer.spec.parse import load_tree, name_of
from placer.spec.tree import Mapping, Node, Scalar
from placer.types import TensorType

T = TypeVar("T")


class Recorded(NamedTuple):
    """The values of an op, and the ops of the graph that it comes to."""

    values: tuple[Variable, ...]
    ops: tuple[Op, ...]


class Program:
    """One model in the making: `with program:` records what is called inside.

    The keywords are keys of a spec (docs/spec.md); inputs, ops, the loss and optimizers
    come from `placer.layers`, `append_backward` and `placer.optimizer`. Paths are
    relative to the file that makes the program, whose name it has unless `name` is
    given; in a notebook they are relative to the working folder, which is the
    notebook's. Raises SpecError at the caller's line.
    """

    def __init__(self, **sections: Unpack[Sections]) -> None:
        self._span = caller()
        self.file = str(home.get() or self._span.file)
        self._is_cell = is_cell(self.file)
        self.folder = Path.cwd() if self._is_cell else Path(self.file).parent
        """Where the paths of its data, and the modules of its calls, begin."""
        self._sections: dict[str, Node] = {}
        self._inputs: dict[str, tuple[Scalar, Scalar]] = {}
        self._entries: list[Entry] = []
        self._parameters: dict[str, dict[str, str]] = {}  # of each op, by its own words
        self._counts: dict[str, int] = {}
        self._minimize: Scalar | None = None
        self._backward: Scalar | None = None
        self._optimizers: list[Node] = []
        self._live: Live | None = None
        self._files: dict[str, bytes] = {}
        self.update(**sections)

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def precision(self) -> str:
        section = self._sections.get("precision")
        return "float32" if section is None else str(section.value)

    def __repr__(self) -> str:
        return f"<Program of {self.file}: {len(self._entries)} ops>"

    def __enter__(self) -> Self:
        _current.set((*_current.get(), self))
        return self

    def __exit__(self, *of_error: object) -> None:
        programs = _current.get()
        last = max((i for i, each in enumerate(programs) if each is self), default=None)
        if last is not None:
            _current.set((*programs[:last], *programs[last + 1 :]))

    def update(self, **sections: Unpack[Sections]) -> None:
        """Say these sections, in place of what was said of them before; None says
        nothing. Raises SpecError, and changes nothing, where the ops do not fit them.
        """
        span, before = caller(), dict(self._sections)
        try:
            for key, value in sections.items():
                if key not in KEYS:
                    message = f"a program has no section '{key}'"
                    raise SpecError(message, span=span, hint=did_you_mean(key, KEYS))
                if value is not None:
                    self._sections[key] = node(value, span, self)
            self._live = None
            self._alive()
        except SpecError:
            self._sections = before
            raise

    def declare(self, name: str, type_: str) -> Variable:
        """The input of that name."""
        span = caller()
        pair = scalar(name, span), scalar(type_, span)
        self._try(lambda live: live.declare(_inputs([pair], span)))
        self._inputs[name] = pair
        return self._variable(name, name)

    def record(
        self,
        kind: str,
        entry: Entries[str, object],
        name: str | None = None,
        said: Sequence[Said] | None = None,
        files: Entries[str, bytes] | None = None,
    ) -> Recorded:
        """Add an op, whose mapping is `entry` beside name and kind, in the open guards,
        or where `said` says. `files` are of initial values that it names, and lie in no
        folder.

        Raises SpecError at the caller's line, and adds nothing, when it is wrong.
        """
        span, number = caller(), None
        if name is None:
            number = self._unused(kind)
            name = f"{kind}_{number}"
        op = node({"name": name, "op": kind, **entry}, span, self)
        assert isinstance(op, Mapping)
        written = op.value
        inputs = tuple(map(str, several(written.pop("in", []))))
        del written["name"], written["op"]
        if said is None:
            said = open_places(Called(kind, name, inputs, written))
        made = Entry(op, tuple(said), region())
        held = dict(self._files)
        self._files.update(files or {})
        try:
            ops = self._try(lambda live: live.add(blocks([made]), span))
        except SpecError:
            self._files.clear()
            self._files.update(held)
            raise
        self._entries.append(made)
        if number is not None:
            self._counts[kind] = number + 1
        self._parameters[name] = parameters(name, written, ops)
        values = [self._variable(v, name) for v in results(name, kind, written, ops)]
        return Recorded(tuple(values), ops)

    def binary(
        self, kind: str, left: Variable | float, right: Variable | float
    ) -> Variable:
        """Record an op on two values, or on a value and a number, in the current
        program. Raises SpecError at the caller's line."""
        program = current_program()
        if not isinstance(left, Variable):
            assert isinstance(right, Variable)
            left = program._constant(left, right)
        elif not isinstance(right, Variable):
            right = program._constant(right, left)
        (value,) = program.record(kind, {"in": [left, right]}).values
        return value

    def _constant(self, number: float, beside: Variable) -> Variable:
        """A number as a value, in the dtype of the one beside it."""
        if not isinstance(number, Real):
            raise SpecError(
                f"an op takes values of the program and numbers, not {shown(number)}",
                span=caller(),
            )
        entry: dict[str, object] = {"value": number}
        # float64 is that of the program's `precision`, in which float32 is float64.
        if beside.dtype not in ("float32", "float64"):
            entry["dtype"] = beside.dtype
        (value,) = self.record("constant", entry).values
        return value

    def unused(self, kind: str) -> str:
        """A name for an op of this kind that is not named."""
        return f"{kind}_{self._unused(kind)}"

    @property
    def files(self) -> Entries[str, bytes]:
        """The files of initial values that lie in no folder, by name."""
        return self._files

    def variable(self, name: str, op: str) -> Variable:
        """A value that an op has made."""
        return self._variable(name, op)

    def take_back(self) -> None:
        """Forget the op that was recorded last."""
        op = self._entries.pop().op
        name, kind = str(op.entries["name"].value), str(op.entries["op"].value)
        del self._parameters[name]
        if name == f"{kind}_{self._counts.get(kind, 0) - 1}":
            self._counts[kind] -= 1
        self._live = None

    def type_of(self, name: str) -> TensorType:
        """The type of a value that is defined."""
        found = self._alive().type_of(name)
        assert found is not None, name
        return found

    def parameters_of(self, op: str) -> dict[str, Variable]:
        """The parameters of an op, its own or shared, by what the op calls them."""
        found = self._parameters.get(op, {})
        return {
            key: self._variable(name, name.rpartition(".")[0] or name)
            for key, name in found.items()
        }

    def append_backward(self, loss: Variable | None) -> None:
        """Place the gradients by the guards that are open now."""
        span = caller()
        if self._backward is not None:
            message = "append_backward has been called for this program"
            raise SpecError(message, span=span, hint="a program has one loss")
        if self._optimizers:
            message = "append_backward comes before minimize"
            raise SpecError(message, span=span, hint="minimize needs the gradients")
        found = self._minimize if loss is None else self._loss(loss, span)
        place = self._place(Called("append_backward", "append_backward"))
        if place is not None:
            self._try(lambda live: live.place(place))
        self._minimize = found
        self._backward = place or scalar(None, span)

    def minimize(self, loss: Variable, rule: str, settings: Entries[str, Any]) -> None:
        """Add an optimizer, in the open guards."""
        span = caller()
        found = self._loss(loss, span)
        entry = node({"op": rule, **settings}, span, self)
        assert isinstance(entry, Mapping)
        place = self._place(Called(rule, rule, (loss.name,), dict(settings)))
        if place is not None:
            entry = mapping({**entry.entries, "place": place}, span)
        self._try(lambda live: live.optimize(entry))
        self._minimize = found
        self._optimizers.append(entry)

    def model(
        self, *, nodes: Entries[str, int] | None = None, single_process: bool = False
    ) -> Model:
        """What is compiled; the arguments are as of `placer.spec.parse`. Raises SpecError
        for what is wrong with the program as a whole."""
        return load_tree(
            self.tree(),
            self.file,
            self.folder,
            nodes=nodes,
            single_process=single_process,
            files=self._files,
        )

    def tree(self) -> Mapping:
        """The program as a spec."""
        said = self._sections
        name = "notebook" if self._is_cell else name_of(self.file)
        named: Node = scalar(name, self._span)
        parts: dict[str, Node | None] = {
            "name": said.get("name", named),
            **{key: said.get(key) for key in BEFORE_INPUTS},
            "inputs": _inputs(list(self._inputs.values()), self._span),
            "data": said.get("data"),
            "graph": sequence(blocks(self._entries), self._span),
            "parameters": said.get("parameters"),
            "train": self._train(),
        }
        given = {key: part for key, part in parts.items() if part is not None}
        return mapping(given, self._span)

    def _train(self) -> Mapping:
        found: dict[str, Node] = {}
        if self._minimize is not None:
            found["minimize"] = self._minimize
        for key in OF_TRAIN:
            if key in self._sections:
                found[key] = self._sections[key]
        if self._backward is not None and self._backward.value is not None:
            found["backward"] = self._backward
        if len(self._optimizers) == 1:
            found["optimizer"] = self._optimizers[0]
        elif self._optimizers:
            found["optimizer"] = sequence(self._optimizers, self._span)
        return mapping(found, self._span)

    def _loss(self, loss: Variable, span: Span) -> Scalar:
        """The loss, which is one for all that is said of it."""
        if not isinstance(loss, Variable):
            message = f"a loss is a value of the program, not {loss!r}"
            raise SpecError(message, span=span)
        found = node(loss, span, self)
        assert isinstance(found, Scalar)
        if self._minimize is not None and self._minimize.value != loss.name:
            message = f"the loss is '{self._minimize.value}', and '{loss.name}' another"
            raise SpecError(message, span=span, hint="add the two: one is minimized")
        self._try(lambda live: live.minimize(found))
        return found

    def _place(self, called: Called) -> Scalar | None:
        said = open_places(called)
        place = merged(said)
        return None if place is None else scalar(str(place), said[-1].span)

    def _unused(self, kind: str) -> int:
        """The number of the next op of this kind that is not named."""
        number, names = self._counts.get(kind, 0), self._alive().names
        while f"{kind}_{number}" in names:
            number += 1
        return number

    def _variable(self, name: str, op: str) -> Variable:
        return Variable(name, self.type_of(name), op, self)

    def _try(self, tell: Callable[[Live], T]) -> T:
        """What the builder makes of something new; if it is wrong, all as before."""
        live = self._alive()
        self._live = None
        found = tell(live)
        self._live = live
        return found

    def _alive(self) -> Live:
        """The builder of what is recorded, made anew after an error."""
        if self._live is None:
            said = self._sections
            wide = self.precision == "float64"
            seed: Any = said["seed"].value if "seed" in said else 0
            live = Live(
                said.get("nodes"), wide, seed, self.folder, self._span, self._files
            )
            live.declare(_inputs(list(self._inputs.values()), self._span))
            if self._entries:
                live.add(blocks(self._entries), self._span)
            self._live = live
        return self._live


def _inputs(pairs: Sequence[tuple[Scalar, Scalar]], span: Span) -> Mapping:
    made = mapping({}, span)
    for key, type_ in pairs:
        made.keys[key.text] = key
        made.entries[key.text] = type_
    return made


_current: ContextVar[tuple[Program, ...]] = ContextVar("placer.programs", default=())
_default: ContextVar[Program | None] = ContextVar("placer.default", default=None)
home: ContextVar[str | None] = ContextVar("placer.home", default=None)
"""The file that programs are of, where it is not the one whose code makes them."""


def current_program() -> Program:
    """The program that what is called now goes to: of the innermost `with program:`,
    else the default one."""
    programs = _current.get()
    return programs[-1] if programs else default_program()


def default_program() -> Program:
    """The program of this thread and task that is there without being made. What it
    cannot know it is told: `default_program().update(nodes=..., data=...)`."""
    program = _default.get()
    if program is None:
        program = Program()
        _default.set(program)
    return program
