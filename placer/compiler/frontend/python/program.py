"""`Program`: a spec written in Python, stored as the sections of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, Unpack

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.parse import load_tree, name_from_file
from placer.compiler.frontend.python.nesting import RecordedOp, nest_ops
from placer.compiler.frontend.python.remat import current_remat
from placer.compiler.frontend.python.results import (
    as_list,
    parameter_names,
    result_names,
)
from placer.compiler.frontend.python.sections import (
    KEYS_BEFORE_INPUTS,
    SECTION_KEYS,
    TRAIN_KEYS,
    Sections,
)
from placer.compiler.frontend.python.tree import mapping_node, scalar_node, to_node
from placer.compiler.frontend.python.variable import Variable
from placer.compiler.frontend.sections.graph import build_ops
from placer.compiler.frontend.sections.inputs import declare_inputs
from placer.compiler.frontend.sections.optimizers import read_group
from placer.compiler.frontend.sections.parameters import (
    Group,
    Pattern,
    first_match,
    read_rules,
)
from placer.compiler.frontend.yaml.overrides import Override
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.compiler.graph.graph import Op
from placer.compiler.graph.model import Model
from placer.errors import PlacerError, Span, SpecError, did_you_mean
from placer.place import Place
from placer.place.guard import GuardEntry, OpCall, merge_entries, places_around
from placer.place.types import TensorType
from placer.plan.settings.checks import describe_value
from placer.system.callsite import call_error, caller_span, is_cell, session_name

T = TypeVar("T")


class OpRecord(NamedTuple):
    """A recorded op: its results, and the ops of the graph that it becomes."""

    values: tuple[Variable, ...]
    ops: tuple[Op, ...]


class Program:
    """A spec written in Python. `with program:` records the ops that are called inside.

    `placer.layers`, `placer.append_backward` and `placer.optimizer` add inputs, ops,
    the loss and optimizers.

    Paths are relative to the file that creates the program. In a notebook they are
    relative to the working folder.

    Args:
        **sections: Keys of a spec (docs/reference/spec.md), with Python values: `name`, `nodes`,
            `data`, `parameters`, `predict`, `precision`, `seed` and `emulate`. Also
            keys of the section `train`, such as `epochs` and `metrics`, except
            `minimize`, `optimizer` and `backward`. The default `name` is the name of
            the file.

    Raises:
        SpecError: At the caller's line, if a section is wrong.

    Example:
        with Program(
            nodes={"worker": {"count": 2}},
            data={"train": {"source": "sklearn:digits", "batch": 128}},
        ) as program:
            image = layers.data("image", "float32[batch, 64]")
            label = layers.data("label", "int32[batch]")
            logits = layers.fc(image, 10)
            loss = layers.softmax_cross_entropy(logits, label)
            optimizer.Adam(0.01).minimize(loss)
        placer.compile(program, "build")
    """

    def __init__(self, **sections: Unpack[Sections]) -> None:
        self._span = caller_span()
        self.file = str(home_file.get() or self._span.file)
        self._is_cell = is_cell(self.file)
        self.folder = Path.cwd() if self._is_cell else Path(self.file).parent
        """Relative paths of data, and the modules of `call`, start here."""
        self._sections: dict[str, SpecNode] = {}
        self._inputs = mapping_node({}, self._span)
        self._entries: list[RecordedOp] = []
        self._parameters: dict[str, dict[str, str]] = {}  # By op and key.
        self._counts: dict[str, int] = {}
        self._minimize: ScalarNode | None = None
        self._backward: ScalarNode | None = None
        self._optimizers: list[SpecNode] = []
        self._kept: list[SpecNode] = []  # entries of `parameters` by `keep`
        self._context: Context | None = None
        self.files: dict[str, bytes] = {}
        """Files with initial values that exist only in memory, by name."""
        self.update(**sections)

    @property
    def is_empty(self) -> bool:
        """True if no op has been recorded."""
        return not self._entries

    @property
    def precision(self) -> str:
        """`float32` or `float64`."""
        section = self._sections.get("precision")
        return "float32" if section is None else str(section.value)

    def __repr__(self) -> str:
        return f"<Program of {self.file}: {len(self._entries)} ops>"

    def __enter__(self) -> Self:
        _current.set((*_current.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        programs = _current.get()
        last = max((i for i, each in enumerate(programs) if each is self), default=None)
        if last is not None:
            _current.set((*programs[:last], *programs[last + 1 :]))

    def update(self, **sections: Unpack[Sections]) -> None:
        """Set sections of the program, replacing earlier values.

        Args:
            **sections: Keys of a spec, as in `Program(...)`. None leaves a section
                unchanged.

        Raises:
            SpecError: At the caller's line, if a section is wrong or does not fit the
                ops. The program is then unchanged.

        Example:
            program.update(epochs=5, metrics=[loss])
        """
        span, before = caller_span(), dict(self._sections)
        try:
            for key, value in sections.items():
                if key not in SECTION_KEYS:
                    hint = did_you_mean(key, SECTION_KEYS)
                    raise call_error(f"a program has no section '{key}'", hint)
                if value is not None:
                    self._sections[key] = to_node(value, span, self)
            self._context = None
            self._live_context()
        except SpecError:
            self._sections = before
            raise

    def declare(self, name: str, type_: str) -> Variable:
        """Add an input and return it. Raises SpecError at the caller's line."""
        span = caller_span()
        key = scalar_node(name, span)
        section = MappingNode(
            span, {key.text: scalar_node(type_, span)}, {key.text: key}
        )
        self._try(lambda live: declare_inputs(section, live))
        self._inputs.entries.update(section.entries)
        self._inputs.keys.update(section.keys)
        return self.variable(name, name)

    def record(
        self,
        kind: str,
        entry: Mapping[str, object],
        name: str | None = None,
        guards: Sequence[GuardEntry] | None = None,
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> OpRecord:
        """Add an op.

        Args:
            kind: The kind of the op.
            entry: The other keys of the op's entry in a spec.
            name: The name of the op, by default a new one.
            guards: The guards around the op; by default the open ones.
            files: Files with initial values that the entry names and that exist only in
                memory.

        Raises:
            SpecError: At the caller's line, if the op is wrong. Nothing is added.
        """
        span = caller_span()
        if name is None:
            name = self.unused_name(kind)
        node = to_node({"name": name, "op": kind, **entry}, span, self)
        assert isinstance(node, MappingNode)
        written = node.value
        inputs = tuple(map(str, as_list(written.pop("in", []))))
        del written["name"], written["op"]
        if guards is None:
            guards = places_around(OpCall(kind, name, inputs, written))
        recorded = RecordedOp(node, tuple(guards), current_remat())
        files_before = dict(self.files)
        self.files.update(files)
        try:
            ops = self._try(lambda live: _add_ops([recorded], span, live))
        except SpecError:
            self.files = files_before
            raise
        self._entries.append(recorded)
        self._parameters[name] = parameter_names(name, written, ops)
        results = result_names(name, kind, written, ops)
        return OpRecord(tuple(self.variable(v, name) for v in results), ops)

    def record_binary(
        self, kind: str, left: Variable | float, right: Variable | float
    ) -> Variable:
        """Record an op on two values, or on a value and a number. Adds the op to the
        current program. Raises SpecError at the caller's line."""
        program = current_program()
        if not isinstance(left, Variable):
            assert isinstance(right, Variable)
            left = program._constant(left, right)
        elif not isinstance(right, Variable):
            right = program._constant(right, left)
        (value,) = program.record(kind, {"in": [left, right]}).values
        return value

    def _constant(self, number: float, other: Variable) -> Variable:
        if not isinstance(number, Real):
            raise call_error(
                "an operand must be a value of the program or a number, not"
                f" {describe_value(number)}"
            )
        entry: dict[str, object] = {"value": number}
        # float32 becomes float64 if this is the program's precision, so neither dtype
        # needs to be written.
        if other.dtype not in ("float32", "float64"):
            entry["dtype"] = other.dtype
        (value,) = self.record("constant", entry).values
        return value

    def unused_name(self, kind: str) -> str:
        """Return the default name for the next op of this kind."""
        number, names = self._counts.get(kind, 0), self._live_context().names
        while f"{kind}_{number}" in names:
            number += 1
        self._counts[kind] = number
        return f"{kind}_{number}"

    def variable(self, name: str, op: str) -> Variable:
        """Return a value that the op `op` computes."""
        return Variable(name, self.type_of(name), op, self)

    def remove_last(self) -> None:
        """Remove the op that was recorded last."""
        node = self._entries.pop().node
        del self._parameters[str(node.entries["name"].value)]
        self._context = None

    def type_of(self, name: str) -> TensorType:
        """Return the type of a defined value."""
        values = self._live_context().values
        type_ = values.inputs.get(name) or values.types.get(name)
        assert type_ is not None, name
        return type_

    def count_nodes(self, place: str | None) -> int:
        """Return the number of nodes of a place; of the default nodes without one.

        Raises PlacerError if the program has no section `nodes` yet.
        """
        if "nodes" not in self._sections:
            raise PlacerError(
                "the program has no nodes yet",
                hint="pass nodes to Program before this call, or parts= to this call",
            )
        cluster = self._live_context().cluster
        assert cluster is not None, "the section exists and is valid"
        at = Place() if place is None else Place.parse(place)
        return len(cluster.nodes(cluster.complete(at, Place(cluster.default.name))))

    def trains(self, parameter: str) -> bool:
        """Return True if the section `parameters` lets a parameter train."""
        rules = read_rules(self._parameter_rules(), Problems())
        rule = first_match(parameter, rules)
        return rule is None or rule.trainable

    def keep(self, pattern: str, span: Span) -> None:
        """Do not train the parameters that match a glob, unless an earlier entry of
        `parameters` matches them."""
        entry = {"match": pattern, "trainable": False}
        self._kept.append(to_node(entry, span, self))

    def _parameter_rules(self) -> SpecNode | None:
        written = self._sections.get("parameters")
        if not self._kept or not isinstance(written, SequenceNode | None):
            return written
        return SequenceNode(
            self._span, [*(written.items if written else ()), *self._kept]
        )

    def parameters_of(self, op: str) -> dict[str, Variable]:
        """Return an op's parameters, including shared ones, by their keys."""
        names = self._parameters.get(op, {})
        return {
            key: self.variable(name, name.rpartition(".")[0] or name)
            for key, name in names.items()
        }

    def append_backward(self, loss: Variable | None) -> None:
        """Set the place of gradients to the place of the open guards.
        `placer.append_backward` calls this."""
        span = caller_span()
        if self._backward is not None:
            message = "append_backward was already called for this program"
            raise SpecError(message, span=span, hint="a program can have only one loss")
        if self._optimizers:
            message = "append_backward must be called before minimize"
            raise SpecError(
                message, span=span, hint="minimize uses the place of the gradients"
            )
        node = self._minimize if loss is None else self._loss_node(loss, span)
        place = self._open_place(OpCall("append_backward", "append_backward"))
        if place is not None:
            self._try(lambda live: live.places.merge(None, place))
        self._minimize = node
        self._backward = place or scalar_node(None, span)

    def minimize(self, loss: Variable, rule: str, settings: Mapping[str, Any]) -> None:
        """Add an optimizer with the rule `rule`, at the place of the open guards."""
        span = caller_span()
        node = self._loss_node(loss, span)
        entry = to_node({"op": rule, **settings}, span, self)
        assert isinstance(entry, MappingNode)
        place = self._open_place(OpCall(rule, rule, (loss.name,), dict(settings)))
        entry = mapping_node({**entry.entries, "place": place}, span)
        where = "train.optimizer"
        self._try(lambda live: read_group(entry, 0, where, {}, None, live))
        self._minimize = node
        self._optimizers.append(entry)

    def model(
        self,
        *,
        nodes: Mapping[str, int] | None = None,
        overrides: Sequence[Override] = (),
    ) -> Model:
        """Return the model of the program, ready to compile. `nodes` and `overrides`
        are the arguments of `placer.compiler.frontend.load`; ops and inputs cannot be
        overridden. Raises SpecError or SpecErrors for errors of the whole program."""
        for override in overrides:
            section = override.key[0]
            if section.text in ("graph", "inputs"):
                what = "ops" if section.text == "graph" else "inputs"
                raise SpecError(
                    f"the {what} of a model in Python cannot be overridden",
                    span=section.span,
                    hint=f"change the Python code: {self.file}",
                )
        return load_tree(
            self.tree(),
            self.file,
            self.folder,
            nodes=nodes,
            overrides=overrides,
            files=self.files,
        )

    def tree(self) -> MappingNode:
        """Return the program as the tree of a spec."""
        sections = self._sections
        name = name_from_file(f"{session_name()}.py" if self._is_cell else self.file)
        default_name: SpecNode = scalar_node(name, self._span)
        parts = {
            "name": sections.get("name", default_name),
            **{key: sections.get(key) for key in KEYS_BEFORE_INPUTS},
            "inputs": self._inputs,
            "data": sections.get("data"),
            "graph": SequenceNode(self._span, nest_ops(self._entries)),
            "parameters": self._parameter_rules(),
            "train": self._train_section(),
            "predict": sections.get("predict"),
        }
        return mapping_node(parts, self._span)

    def _train_section(self) -> MappingNode:
        has_backward = self._backward is not None and self._backward.value is not None
        optimizer: SpecNode | None = None
        if self._optimizers:
            several = SequenceNode(self._span, self._optimizers)
            optimizer = several if len(several.items) > 1 else several.items[0]
        section = {
            "minimize": self._minimize,
            **{key: self._sections.get(key) for key in TRAIN_KEYS},
            "backward": self._backward if has_backward else None,
            "optimizer": optimizer,
        }
        return mapping_node(section, self._span)

    def _loss_node(self, loss: Variable, span: Span) -> ScalarNode:
        if not isinstance(loss, Variable):
            message = f"a loss must be a value of the program, not {loss!r}"
            raise SpecError(message, span=span)
        node = to_node(loss, span, self)
        assert isinstance(node, ScalarNode)
        if self._minimize is not None and self._minimize.value != loss.name:
            message = (
                f"the program already minimizes '{self._minimize.value}', so it cannot"
                f" minimize '{loss.name}'"
            )
            raise SpecError(
                message, span=span, hint="minimize the sum of the two losses"
            )
        self._try(lambda live: live.values.check_scalar(node, "loss"))
        return node

    def _open_place(self, call: OpCall) -> ScalarNode | None:
        entries = places_around(call)
        place = merge_entries(entries)
        return None if place is None else scalar_node(str(place), entries[-1].span)

    def _try(self, change: Callable[[Context], T]) -> T:
        """Apply a change to the context and return its result. After an error, the
        context is created again before its next use."""
        live = self._live_context()
        self._context = None
        result = change(live)
        live.problems.raise_any()
        self._context = live
        return result

    def _live_context(self) -> Context:
        """Return the context of the recorded ops; after an error it is created again.
        Without a section `nodes`, places are only parsed. Checks that need the whole
        program run when it is compiled: places, rules of `parameters`, optimizers,
        rows."""
        if self._context is None:
            sections = self._sections
            known: dict[str, Any] = {
                "nodes": sections.get("nodes"),
                "precision": self.precision,
            }
            if "seed" in sections:
                known["seed"] = sections["seed"].value
            live = Context(known, self.folder, self.files, Problems())
            live.problems.raise_any()
            declare_inputs(self._inputs, live)
            live.problems.raise_any()
            every = Pattern(None, self._span)
            entry = MappingNode(self._span, {}, {})
            group = Group(every, self._span, entry, {"group": 0})
            live.parameters.groups.append(group)
            if self._entries:
                _add_ops(self._entries, self._span, live)
            self._context = live
        return self._context


def _add_ops(
    entries: Sequence[RecordedOp], span: Span, context: Context
) -> tuple[Op, ...]:
    before = len(context.values.ops)
    build_ops(SequenceNode(span, nest_ops(entries)), context)
    context.problems.raise_any()
    return tuple(context.values.ops[before:])


_current: ContextVar[tuple[Program, ...]] = ContextVar("placer.programs", default=())
_default: ContextVar[Program | None] = ContextVar("placer.default", default=None)
home_file: ContextVar[str | None] = ContextVar("placer.home", default=None)
"""The file that programs belong to, if their code runs in another file."""


def current_program() -> Program:
    """Return the program of the innermost `with program:`, or the default program."""
    programs = _current.get()
    return programs[-1] if programs else default_program()


def default_program() -> Program:
    """Return the default program, which records calls outside of `with program:`.

    Each thread and asyncio task has one. Set its sections with `update`.

    Returns:
        The default program. The first call creates it.

    Example:
        x = layers.data("x", "float32[batch, 4]")
        loss = layers.mean(layers.fc(x, 1))
        optimizer.SGD(0.1).minimize(loss)
        placer.default_program().update(
            nodes={"worker": {"count": 1}},
            data={"train": {"source": "npz:rows.npz", "batch": 8}},
        )
    """
    program = _default.get()
    if program is None:
        program = Program()
        _default.set(program)
    return program
