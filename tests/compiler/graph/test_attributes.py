"""Each kind of op has the attributes that are declared for it, with values of their types."""

import re

import pytest

from placer.compiler.graph.attributes import ANY
from placer.compiler.graph.declared import attribute, passed_attrs
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import KINDS
from placer.compiler.graph.text import parse_graph, print_op
from placer.compiler.passes.verify import GraphForm, verify
from placer.errors import GraphError
from placer.place import Cluster, Place
from placer.plan.exchanges import EXCHANGES
from placer.plan.settings.training.update_modes import Async, Geo, HalfAsync, Sync

PS = Place.parse("/node:ps/cpu")

# An op with a wrong attribute, the message after the kind, and the hint.
WRONG = [
    ("parameter", {"init": "zeros", "bukket": 1}, "has no attribute 'bukket'"),
    ("parameter", {"init": {"normal": "a"}}, "cannot have init: {'normal': 'a'}: "),
    ("parameter", {"init": "zeros", "ring": True}, "has no attribute 'ring'"),
    ("parameter", {"init": "zeros", "group": "a"}, "cannot have group: 'a': Expected `int`"),
    ("read", {"input": 1}, "cannot have input: 1: Expected `str`, got `int`"),
    ("cut", {"start": 0, "stop": True}, "cannot have stop: True: Expected `int`"),
    ("record", {"metric": "a", "final": None}, "cannot have final: None: Expected `str`"),
    ("sgd", {"group": 0, "wrt": (0,)}, "has no attribute 'wrt'"),
    ("sgd", {"group": 0, "decay": 1}, "cannot have decay: 1: Expected `bool`"),
    ("pull", {"group": 0, "first": 2}, "has no attribute 'first'"),
    ("push_delta", {"every": 0.5}, "cannot have every: 0.5: Expected `int`"),
    ("send", {"edge": 1, "to": "ps"}, "cannot have to: 'ps': Expected `Place`, got `str`"),
    ("send", {"edge": 1, "to": PS, "from": PS}, "has no attribute 'from'"),
    ("send", {"edge": 1, "to": PS, "exchange": "pul"}, "cannot have exchange: 'pul'"),
    ("all_reduce", {"ring": 0}, "cannot have ring: 0: Expected `bool`"),
    ("all_reduce", {"every": 1}, "has no attribute 'every'"),
    ("memcpy_h2d", {"rows": "a"}, "cannot have rows: 'a': Expected `int`"),
    ("relu", {"segment": "a"}, "cannot have segment: 'a': Expected `int`"),
    ("relu", {"of": "a"}, "has no attribute 'of'"),
    ("accumulate", {"of": 1}, "cannot have of: 1: Expected `str`"),
    ("relu.grad", {"wrt": 0}, "cannot have wrt: 0: Expected `array`"),
    ("relu.grad", {"wrt": ("a",)}, "cannot have wrt: ('a',): Expected `int`"),
    ("reduce_sum", {"axis": "a"}, "cannot have axis: 'a': "),
    ("minimize", {"clip": {"norm": "a"}}, "cannot have clip: {'norm': 'a'}: Expected"),
]  # fmt: skip
OPTIMIZER = {"group": 0, "rule": "sgd", "learning_rate": 0.1}
WRONG += [
    ("optimizer", {**OPTIMIZER, **wrong}, message)
    for wrong, message in [
        ({"rule": "sdg"}, "cannot have rule: sdg"),
        ({"learning_rate": "fast"}, "cannot have learning_rate: 'fast': "),
        ({"update": "asink"}, "cannot have update: "),
        ({"update": {"async": {"queue": 0}}}, "cannot have update: "),
        ({"update": {"async": {}, "geo": {}}}, "cannot have update: "),
        ({"update": {"geo": {}}}, "cannot have update: "),
        ({"momentun": 0.9}, "has no attribute 'momentun'"),
        ({"momentum": "a"}, "cannot have momentum: 'a': Expected `float`"),
    ]
]


def graph_of(*ops):
    return Graph("g", Cluster.parse("nodes(worker: 2, ps: 1)"), 8, ops)


@pytest.mark.parametrize(("kind", "attrs", "message"), WRONG)
def test_a_wrong_attribute_is_refused(kind, attrs, message):
    """By the verifier with the op, and by the parser with the position."""
    op = Op(kind, attrs=attrs)
    with pytest.raises(GraphError, match=re.escape(f"{kind} {message}")) as caught:
        verify(graph_of(op), GraphForm.WRITTEN)
    assert print_op(op) in caught.value.message
    text = f"graph @g nodes(worker: 2, ps: 1) batch(8) {{\n  {print_op(op)}\n}}\n"
    with pytest.raises(GraphError, match=re.escape(f"{kind} {message}")) as caught:
        parse_graph(text)
    line = text.splitlines()[1]
    assert caught.value.span.line == 2
    (name,) = re.findall(r"no attribute '(\w+)|cannot have (\w+)", message)
    at = re.search(rf"[ {{]{''.join(name)} = ", line).start()
    assert caught.value.span.column == at + 2


@pytest.mark.parametrize(
    ("kind", "attrs", "name"),
    [
        ("send", {"edge": 1}, "to"),
        ("optimizer", {"group": 0, "learning_rate": 0.1}, "rule"),
        ("accumulate", {}, "of"),
        ("relu.grad", {}, "wrt"),
        ("cut", {"start": 0}, "stop"),
    ],
)
def test_a_missing_attribute_is_refused(kind, attrs, name):
    message = f"{kind} needs the attribute '{name}': "
    with pytest.raises(GraphError, match=re.escape(message)):
        verify(graph_of(Op(kind, attrs=attrs)), GraphForm.WRITTEN)


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (Sync(), "sync"),
        (Sync(backup=2), "{sync = {backup = 2}}"),
        (Async(), "{async = {}}"),
        (Async(4, compensate=1.0), "{async = {max_staleness = 4, compensate = 1.0}}"),
        (HalfAsync(), "{half_async = {}}"),
        (Geo(2, outer={"op": "sgd"}), "{geo = {every = 2, outer = {op = sgd}}}"),
    ],
)
def test_the_mode_of_an_optimizer_is_its_attribute(update, text):
    op = Op("optimizer", attrs={**OPTIMIZER, "update": update})
    assert f"update = {text}" in print_op(op)
    graph = graph_of(op)
    printed = f"graph @g nodes(worker: 2, ps: 1) batch(8) {{\n  {print_op(op)}\n}}\n"
    (read,) = parse_graph(printed)
    assert read.attrs["update"] == update
    assert graph.modes == {0: None if isinstance(update, Sync) else update}
    assert graph.backups == {0: getattr(update, "backup", 0)}


def test_what_an_exchange_declares_is_what_its_ops_and_messages_have():
    for exchange in EXCHANGES.values():
        for name in ("group", *exchange.settings):
            assert attribute(exchange.name, name) is attribute("send", name)


def test_programs_pass_declared_attributes_only():
    op = Op("constant", attrs={"value": 0.5, "shape": (3,), "segment": 1, "remat": 2})
    assert passed_attrs(op).keys() == {"value", "shape"}
    assert not {*ANY} & {name for kind in KINDS.values() for name in kind.attrs}
