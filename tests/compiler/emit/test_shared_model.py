"""Evaluation and prediction share functions, which JAX traces to the same equations."""

import ast
import functools
import inspect

import jax
import pytest

from placer.compiler import driver
from placer.compiler.emit import programs
from placer.compiler.emit.code import Call, Expression
from placer.compiler.emit.function import Function, Statement
from placer.compiler.emit.names import STATIC_ARGUMENTS, Names
from placer.compiler.emit.programs import emit_programs
from placer.compiler.emit.shared_model import SharedModel, share_model
from placer.system.resources import find_file

ROWS = 8
SPECS = {
    "digits": 1,
    "digits_hybrid": 1,
    "digits_geo": 1,
    "digits_cnn": 2,
    "cnn_gpus": 1,
    "custom_op": 1,
    "diabetes": 2,
    "transformer_pipeline": 2,
    "wide_deep": 2,
    "wide_deep_sparse": 1,
    "lstm": 1,
}
"""How many programs of a spec have a shared function."""


def not_shared(evaluation, prediction, names):
    del names
    return SharedModel([], [*evaluation, *prediction], {})


@pytest.mark.parametrize("spec", SPECS)
def test_shared_functions_have_the_jaxprs_of_separate_ones(spec, monkeypatch):
    emitted = []

    def emit_both(step, graphs, *others):
        emitted.append(emit_programs(step, graphs, *others))
        with monkeypatch.context() as patched:
            patched.setattr(programs, "share_model", not_shared)
            emitted.append(emit_programs(step, graphs, *others))
        emitted.append(graphs)
        return emitted[0]

    monkeypatch.syspath_prepend(find_file("specs"))
    monkeypatch.setattr(driver, "emit_programs", emit_both)
    driver.compile_in_memory(find_file(f"specs/{spec}.yaml"))
    shared, separate, graphs = emitted
    found = 0
    for path in {*shared.of_node.values()}:
        texts = shared.files[path], separate.files[path]
        found += "def model" in texts[0]
        assert "def model" not in texts[1]
        for graph in graphs:
            if graph.hook == "step":
                assert defined(texts[0], "step") == defined(texts[1], "step")
                continue
            ours, theirs = (jaxprs(text, graph) for text in texts)
            assert ours == theirs
    assert found == SPECS[spec]


def defined(text, name):
    tree = ast.parse(text)
    (found,) = (n for n in tree.body if getattr(n, "name", "") == name)
    return ast.unparse(found)


def jaxprs(text, lowered):
    """Return the jaxpr of each function that a hook calls, in order."""
    namespace = {"__name__": "program"}
    exec(compile(text, "program.py", "exec"), namespace)
    hook = ast.parse(defined(text, lowered.hook))
    called = [
        node.func.id
        for node in ast.walk(hook)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    functions = (namespace[name] for name in called)
    return [
        jaxpr(function.__wrapped__, namespace, types_of(lowered.graph))
        for function in functions
        if isinstance(function, jax.stages.Wrapped)
    ]


def types_of(graph):
    """Return the types of the values of a graph by their variables."""
    return {Names().name_of(name): graph.tensor_type(name) for name in graph.values}


def jaxpr(function, namespace, types):
    """Return the jaxpr of a function, for rows that have zeros."""
    arguments, numbers = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in STATIC_ARGUMENTS:
            numbers[name] = ROWS
        elif parameter.annotation is inspect.Parameter.empty:
            arguments.append(
                array(types[name if name in types else name[: -len("_sum")]])
            )
        else:
            arguments.append(bundle(parameter.annotation, types))
    traced = jax.make_jaxpr(functools.partial(function, **numbers))(*arguments)
    return str(traced)


def bundle(layers, types):
    """Return the arguments of a class, whose layers are in a class or alone."""
    values = []
    for name in layers._fields:
        kind = layers.__annotations__[name]
        keys = getattr(kind, "_fields", None)
        if keys is None:
            values.append(array(types[name]))
        else:
            values.append(kind(*(array(types[f"{name}_{key}"]) for key in keys)))
    return layers(*values)


def array(kind):
    shape = [ROWS if isinstance(size, str) else size for size in kind.shape]
    return jax.ShapeDtypeStruct(shape, kind.dtype)


def function(name, *statements, results, parameters=("x",)):
    """A function of statements such as `a = f(x, y)`, written `a f x y`."""
    calls = []
    for text in statements:
        target, called, *arguments = text.split()
        read = [
            Expression(each, each.partition(".")[0])
            for each in arguments
            if each != "count"
        ]
        numbers = frozenset({"count"} & {*arguments})
        call = Call(called, [*read, *sorted(numbers)], [target], about=(name, target))
        calls.append(Statement(call, numbers))
    return Function(name, dict.fromkeys(parameters, ""), calls, results)


def text_of(shared):
    functions = [*shared.models, *shared.others]
    return ["\n".join(line.text for line in each.lines()) for each in functions]


def test_a_value_that_one_function_needs_is_ignored_in_the_other():
    ours = function("evaluate", "a f x", "b g a count", "c h a", results=["b", "c"])
    theirs = function("predict", "a f x", "b g a count", results=["b"])
    model, evaluate, predict = text_of(share_model([ours], [theirs], Names()))
    assert model == (
        "def model(x, *, count):\n    a = f(x)\n    b = g(a, count)\n    return a, b"
    )
    assert evaluate.splitlines()[2] == "    a, b = model(x, count=count)"
    assert predict.splitlines()[2] == "    _, b = model(x, count=count)"


def test_the_first_statements_may_differ():
    ours = function("evaluate", "y k z", "a f x", "b g a", results=["b", "y"])
    theirs = function("predict", "a f x", "b g a", "c h b", results=["c"])
    model, evaluate, predict = text_of(share_model([ours], [theirs], Names()))
    assert model.splitlines() == ["def model(x):", "    a = f(x)", "    return g(a)"]
    assert evaluate.splitlines()[2:4] == ["    y = k(z)", "    b = model(x)"]
    assert predict.splitlines()[2:] == ["    b = model(x)", "    return h(b)"]


def test_errors_in_shared_statements_are_about_the_same_ops():
    ours = function("evaluate", "a f x", "b g a", "c h b", results=["c"])
    theirs = function("predict", "a f x", "b g a", "d k b", results=["d"])
    shared = share_model([ours], [theirs], Names())
    assert [s.call.about for s in shared.models[0].statements] == [
        ("model", "a"),
        ("model", "b"),
    ]
    assert [s.call.about for s in shared.others[0].statements] == [
        ("evaluate", "a", "b"),
        ("evaluate", "c"),
    ]


def test_a_single_statement_and_a_fitting_class_are_not_enough():
    ours = function("evaluate", "a f x", "b g a", results=["b"])
    theirs = function("predict", "a f x", "c h a", results=["c"])
    assert not share_model([ours], [theirs], Names()).models
    other = function("predict", "a f x", "b g a", "c h b", results=["c"])
    other.parameters["x"] = "Dense"
    assert not share_model([ours], [other], Names()).models


def test_a_field_of_a_value_that_is_saved_is_assigned_in_the_shared_function():
    lines = "s ops.Saved", "s.a f x", "b g s.a"
    ours = function("evaluate", *lines, "c h b", results=["c", "s"])
    theirs = function("predict", *lines, "d k b", results=["d", "s"])
    model, evaluate, _ = text_of(share_model([ours], [theirs], Names()))
    assert model.splitlines()[-1] == "    return s, b"
    assert "s, b = model(x)" in evaluate


def test_equal_functions_are_one_that_is_jitted():
    ours = function("evaluate", "a f x", results=["a"])
    theirs = function("predict", "a f x", results=["a"])
    shared = share_model([ours], [theirs], Names())
    assert text_of(shared) == ["@jax.jit\ndef model(x):\n    return f(x)"]
    assert shared.renamed == {"evaluate": "model", "predict": "model"}


def test_several_shared_functions_are_named_after_their_last_values():
    ours = [
        function("evaluate_b", "a f x", "b g a", results=["b"]),
        function("evaluate_d", "c f x", "d g c", results=["d"]),
    ]
    theirs = [
        function("predict_b", "a f x", "b g a", results=["b"]),
        function("predict_e", "c f x", "d g c", "e k d", results=["e"]),
    ]
    shared = share_model(ours, theirs, Names())
    assert [each.name for each in shared.models] == ["model_b", "model_d"]
