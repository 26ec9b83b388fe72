"""The text form of graphs: exact round trips, and errors with positions."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.marks import slow_but
from support.small_models import with_optax

from placer.compiler.driver import lower_model
from placer.compiler.frontend import load
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.op_lines import read_graph_lines
from placer.compiler.graph.text import (
    parse_graph,
    parse_graphs,
    print_graph,
    read_by_grammar,
)
from placer.errors import GraphError
from placer.place import Cluster, Place
from placer.place.types import ITEM_BYTES, ResidualType, TensorType
from placer.system.resources import find_file

SPECS = sorted(path.stem for path in find_file("specs").glob("*.yaml"))
SETTINGS = settings(derandomize=True, deadline=None, max_examples=150)
HEAD = "graph @g nodes(worker: 2, ps: 2) batch(8) {\n"


def round_trip(text):
    return print_graph(parse_graph(text))


@pytest.mark.parametrize("nodes", slow_but([None], [None, {"worker": 4}]))
@pytest.mark.parametrize("spec", SPECS)
def test_every_graph_of_every_spec_round_trips(spec, nodes):
    model = with_optax(load(find_file(f"specs/{spec}.yaml"), nodes=nodes))
    graphs = [model.graph]
    lower_model(model, lambda name, graph: graphs.append(graph))
    assert len(graphs) >= 7
    for graph in graphs:
        text = print_graph(graph)
        (read,) = read_graph_lines(text)
        assert read == graph
        assert print_graph(read) == text


letters = string.ascii_letters + string.digits + "_"
names = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(string.ascii_letters + "_"), st.text(letters + ".", max_size=8)
    ),
)
places = st.sampled_from(
    [
        "/node:worker/cpu",
        "/node:ps:0-1,3/cpu:0",
        "/gpu:1",
        "/node:worker:1",
        "/node:ps:*/cpu:*",
        "/node:worker/gpu:0-7",
    ]
).map(Place.parse)
scalars = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    names,
    places,
)
terms = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(names, inner, max_size=3),
    ),
    max_leaves=6,
)
tensors = st.builds(
    TensorType,
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 99) | st.just("batch"), max_size=3).map(tuple),
)
types = tensors | st.builds(ResidualType, st.lists(tensors, max_size=3).map(tuple))
values = st.builds(Value, names, types, st.sampled_from([None, "R", "S", "P"]))
op_texts = st.builds(
    Op,
    names,
    st.lists(names, max_size=3).map(tuple),
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(names, terms, max_size=4),
    st.none() | places,
)
clusters = st.sampled_from(
    [
        "nodes(worker: 2)",
        "nodes(worker: 4 {gpu: 8}, ps: 2)",
        "nodes(a: 1 {cpu: 2, gpu: 1})",
    ]
).map(Cluster.parse)


@SETTINGS
@given(
    st.builds(
        Graph,
        names,
        clusters,
        st.integers(0, 10**6),
        st.lists(op_texts, max_size=6).map(tuple),
    )
)
def test_any_graph_round_trips(graph):
    text = print_graph(graph)
    (read,) = read_graph_lines(text)
    assert read == graph
    assert print_graph(read) == text
    assert read_by_grammar(text, "") == (graph,)


UNUSUAL = {
    "small": 1e-05,
    "large": 1e300,
    "infinite": float("inf"),
    "below": float("-inf"),
    "whole": 3.0,
    "zero": -0.0,
    "negative": -7,
    "huge": 10**40,
    "yes": True,
    "nothing": None,
    "word": "relu",
    "text_true": "true",
    "text_none": "none",
    "text_inf": "inf",
    "number": "12",
    "empty": "",
    "quote": 'a "b" \\ c',
    "lines": "one\ntwo\r\n# no comment",
    "unicode": "Größe 模型 🙂",
    "slash": "/node:worker/cpu",
    "percent": "%x",
    "place": Place.parse("/node:ps:0-1/cpu"),
    "places": (Place.parse("/node:ps:0,2/cpu"), Place.parse("/gpu:1")),
    "nested": {"a": {"b.c": {"d": ()}}, "e": ((), ((1,),), {})},
    "single": (Place.parse("/gpu"),),
    "inside": {"place": Place.parse("/node:worker:0/cpu")},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_attributes_round_trip(name):
    op = Op("op", attrs={name: UNUSUAL[name], "after": 1})
    graph = Graph("g", Cluster.parse("nodes(worker: 1)"), 1, (op,))
    text = print_graph(graph)
    for (read,) in (read_graph_lines(text), read_by_grammar(text, "")):
        assert read == graph
        assert repr(read.ops[0].attrs) == repr(op.attrs)


@pytest.mark.parametrize(
    "kind", ["()", "(float32[2])", "(float32[2], bool[], int32[batch, 3])"]
)
def test_residuals_of_any_number_of_parts_round_trip(kind):
    text = f"{HEAD}  %x.res: {kind} S = op()\n}}\n"
    assert round_trip(text) == text


def test_reasons_are_comments():
    op = Op("op", why="inserted: as a test")
    graph = Graph("g", Cluster.parse("nodes(worker: 1)"), 1, (op,))
    text = print_graph(graph, reasons=True)
    assert "  op()  # inserted: as a test\n" in text
    assert parse_graph(text).ops[0].why == ""


def test_a_text_can_have_several_graphs():
    text = f"{HEAD}}}\n"
    assert len(parse_graphs(text + "\n" + text)) == 2
    with pytest.raises(GraphError, match="expected one graph, found 2"):
        parse_graph(text + text)


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        (2, 21, HEAD + "  %x: float32[] R = = op()\n}\n"),
        (2, 3, HEAD + "  (%x)\n}\n"),
        (3, 10, HEAD + "  op()\n  op() { = 1}\n}\n"),
        (1, 1, "graf @g nodes(worker: 2) batch(8) {\n}\n"),
        (2, 6, HEAD + "  op(?)\n}\n"),
    ],
)
def test_an_error_has_the_line_and_the_column(line, column, text):
    with pytest.raises(GraphError) as caught:
        parse_graph(text, "my.txt")
    span = caught.value.span
    assert caught.value.message == "this is not the text of a graph"
    assert (span.file, span.line, span.column) == ("my.txt", line, column)
    assert span.text == text.splitlines()[line - 1]


@pytest.mark.parametrize(
    ("op", "message", "column"),
    [
        ("%x: float33[2] = op()", "'float33' is not a dtype", 7),
        ("%x: float32[2, rows] = op()", "'rows' is not a dimension", 7),
        ("op() @/node:work/cpu:x", "", 8),
        ('op() {a = "\\q"}', "", 13),
        ("op() {a = [/node]}", "", 14),
    ],
)
def test_an_invalid_word_is_reported_at_its_position(op, message, column):
    with pytest.raises(GraphError) as caught:
        parse_graph(f"{HEAD}  {op}\n}}\n", "my.txt")
    assert message in caught.value.message
    assert (caught.value.span.line, caught.value.span.column) == (2, column)


def test_a_truncated_text_is_reported():
    with pytest.raises(GraphError, match="the graph's text ends too early"):
        parse_graph(HEAD)


fragments = st.sampled_from(
    [
        *["graph", "@g", "nodes(worker: 2)", "nodes(", "nodes()", "batch(8)"],
        *["batch(-1)", "{", "}", "%x", ":", "float32[]", "float32[batch", "= ", "("],
        *[")", "op", "@/node:worker", "@/", "/gpu", '"', '"\\x"', "1e999", "-", "R"],
        *["S", ",", "[", "]", "#", "\n", "true", "nodes(worker: 99999999999)", "inf"],
        *["()", "nodes(a: 0)", "batch(99999999999999999999)", "@/node:worker/cpu:9-1"],
    ]
)


@SETTINGS
@example("graph @g nodes(worker: 1) batch(8) { %x: float32[" + "9" * 5000 + "] = o() }")
@example("graph @g nodes(worker: 1) batch(" + "9" * 5000 + ") { }")
@example("graph @g nodes(worker: 1) batch(8) { o() {a = " + "9" * 5000 + "} }")
@example("graph @g nodes(worker: 1) batch(8) { o() {a = " + "[" * 3000 + "} }")
@given(st.text() | st.lists(fragments, max_size=25).map(" ".join))
def test_random_text_raises_only_graph_errors(text):
    by_lines = read_graph_lines(text)
    try:
        graphs = read_by_grammar(text, "")
    except GraphError:
        assert by_lines is None
        return
    assert by_lines in (None, graphs)
    assert parse_graphs("".join(map(print_graph, graphs))) == graphs


@SETTINGS
@given(st.data())
def test_a_damaged_graph_raises_only_graph_errors(data):
    text = print_graph(load(find_file("specs/digits.yaml")).graph)
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 12))
    inserted = data.draw(st.text(max_size=4))
    damaged = text[:at] + inserted + text[at + length :]
    by_lines = read_graph_lines(damaged)
    try:
        graphs = read_by_grammar(damaged, "")
    except GraphError:
        assert by_lines is None
        return
    assert by_lines in (None, graphs)
    assert parse_graphs("".join(map(print_graph, graphs))) == graphs
