"""The rewriter gives the ops of a graph, and builds another graph from them."""

import doctest

import pytest

from placer.compiler.graph import rewriter as module
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.text import parse_graph, print_graph

BEFORE = """\
%x: float32[batch, 4] = read() {input = x}
%h: float32[batch, 4] = relu(%x)
%h.copy: float32[batch, 4] = tanh(%x)
%y: float32[batch, 4] = add(%h, %h.copy)
"""


def graph_of(body: str) -> Graph:
    lines = "".join(f"  {line}\n" for line in body.splitlines())
    return parse_graph(f"graph @model nodes(worker: 1) batch(8) {{\n{lines}}}\n")


def body_of(graph: Graph) -> str:
    lines = print_graph(graph).splitlines()[1:-1]
    return "".join(f"{line.removeprefix('  ')}\n" for line in lines)


def copy_of(rewriter: Rewriter, name: str) -> Op:
    return Op("identity", (name,), (rewriter.new_value(name, "copy"),))


def test_ops_are_inserted_before_and_after_the_current_op_in_the_order_of_calls():
    graph = graph_of(BEFORE)
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.name == "h":
            rewriter.insert(copy_of(rewriter, "x"))
            rewriter.insert_after(copy_of(rewriter, "h"), copy_of(rewriter, "h"))
            rewriter.insert(copy_of(rewriter, "x"))
    rewriter.insert(copy_of(rewriter, "y"))
    assert body_of(rewriter.graph()) == (
        "%x: float32[batch, 4] = read() {input = x}\n"
        "%x.copy: float32[batch, 4] = identity(%x)\n"
        "%x.copy.1: float32[batch, 4] = identity(%x)\n"
        "%h: float32[batch, 4] = relu(%x)\n"
        # The graph has a value %h.copy.
        "%h.copy.1: float32[batch, 4] = identity(%h)\n"
        "%h.copy.2: float32[batch, 4] = identity(%h)\n"
        "%h.copy: float32[batch, 4] = tanh(%x)\n"
        "%y: float32[batch, 4] = add(%h, %h.copy)\n"
        "%y.copy: float32[batch, 4] = identity(%y)\n"
    )
    assert body_of(graph) == BEFORE


def test_the_current_op_is_replaced_erased_or_gets_other_operands():
    rewriter = Rewriter(graph_of(BEFORE))
    for op in rewriter:
        match op.name:
            case "h":
                rewriter.replace(Op("sigmoid", op.operands, op.results))
            case "h.copy":
                rewriter.replace(copy_of(rewriter, "h"), copy_of(rewriter, "x"))
                rewriter.erase()
            case "y":
                # The loop gives the op of the old graph, and calls add up.
                rewriter.replace(op.with_attrs(number=1))
                rewriter.replace_operands({"h.copy": "h.copy.1", "unused": "x"})
                rewriter.replace_operands({"h": "x"})
                assert op.operands == ("h", "h.copy")
    assert body_of(rewriter.graph()) == (
        "%x: float32[batch, 4] = read() {input = x}\n"
        "%h: float32[batch, 4] = sigmoid(%x)\n"
        "%h.copy.1: float32[batch, 4] = identity(%h)\n"
        "%y: float32[batch, 4] = add(%x, %h.copy.1) {number = 1}\n"
    )


def test_a_new_value_has_the_type_and_the_layout_of_another_one_or_a_given_layout():
    graph = graph_of("%x: float32[batch, 4] S = read() {input = x}\n")
    rewriter = Rewriter(graph)
    same, gathered = (
        rewriter.new_value("x", "a"),
        rewriter.new_value("x", "b", layout="R"),
    )
    assert (same.name, same.type, same.layout) == ("x.a", graph.values["x"].type, "S")
    assert (gathered.name, gathered.layout) == ("x.b", "R")
    assert [rewriter.new_name(wish) for wish in ("x.a", "z", "z")] == [
        "x.a.1",
        "z",
        "z.1",
    ]


def test_without_a_change_the_graph_is_the_old_one():
    graph = graph_of(BEFORE)
    rewriter = Rewriter(graph)
    for op in rewriter:
        rewriter.replace_operands({"z": "x"})
        rewriter.replace(op)
    assert rewriter.graph() is graph


def test_a_loop_that_ends_early_or_runs_twice_is_a_mistake():
    rewriter = Rewriter(graph_of(BEFORE))
    for _ in rewriter:
        break
    with pytest.raises(AssertionError, match="has not reached the last op"):
        rewriter.graph()
    rewriter = Rewriter(graph_of(BEFORE))
    assert len(list(rewriter)) == 4
    with pytest.raises(AssertionError, match="only once"):
        next(iter(rewriter))


@pytest.mark.parametrize(
    "change",
    [
        lambda rewriter, op: rewriter.insert_after(op),
        lambda rewriter, op: rewriter.replace(op),
        lambda rewriter, op: rewriter.replace_operands({"x": "h"}),
        lambda rewriter, op: rewriter.erase(),
    ],
)
def test_a_change_without_a_current_op_is_a_mistake(change):
    rewriter = Rewriter(graph_of(BEFORE))
    for op in rewriter:
        rewriter.erase()
        with pytest.raises(AssertionError, match="no op is current"):
            change(rewriter, op)
    with pytest.raises(AssertionError, match="no op is current"):
        change(rewriter, op)


def test_the_example_of_the_rewriter_runs():
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
