"""Declarations agree with the functions of the ops."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import pytest
import yaml
from support import op_cases
from support.op_cases import BATCH, DIFFERENTIABLE, WITHOUT_GRADIENT, Use, mostly_slow

from placer import ops
from placer.compiler.graph.structural_ops import KINDS as STRUCTURAL_KINDS
from placer.compiler.graph.structural_ops import is_conversion
from placer.ops.attributes import complete, condense
from placer.place.types import TensorType
from tools import op_reference

KINDS = ops.kinds()
GLOBALLY_TYPED = {"split_rows", "pad_rows"}  # their types are those of the global value
# None of their uses here is split by rows, or computes parts of a batch.
COUNT_ROWS = {"pad_rows", "replica_norm", "call"}
USER_FUNCTIONS = {"call", "metric"}  # tested in tests/spec


def in_dtypes(uses: list[Use]) -> list[tuple[Use, str]]:
    """Return each use in float32, and the first of each kind in other dtypes."""
    firsts = {use.kind: use for use in reversed(uses)}.values()
    others = [(use, dtype) for dtype in ("float64", "bfloat16") for use in firsts]
    return [*((use, "float32") for use in uses), *others]


def test_no_computed_op_has_the_kind_of_another_op():
    assert [k for k in KINDS if k in STRUCTURAL_KINDS or is_conversion(k)] == []


def structs(use: Use) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(t.sizes(BATCH), t.dtype) for t in use.types]


def declared(types) -> list[TensorType]:
    return [t.with_batch(BATCH) for t in types]


def actual(tree) -> list[TensorType]:
    return [TensorType(str(a.dtype), a.shape) for a in jax.tree.leaves(tree)]


def test_the_cases_cover_every_op():
    assert {use.kind for use in op_cases.ALL} | GLOBALLY_TYPED | USER_FUNCTIONS == set(
        KINDS
    )
    differentiable = {
        kind for kind in KINDS if ops.find(kind).differentiable
    } - USER_FUNCTIONS
    assert {use.kind for use in DIFFERENTIABLE} == differentiable


@pytest.mark.parametrize(("use", "dtype"), in_dtypes(WITHOUT_GRADIENT), ids=str)
def test_the_result_has_the_declared_type(use, dtype):
    use = use.with_dtype(dtype)
    with jax.enable_x64(dtype == "float64"):
        function = getattr(ops, use.kind)
        out = jax.eval_shape(lambda *xs: function(*xs, **use.keywords()), *structs(use))
    assert actual(out) == declared(use.declaration.infer(use.types, use.all_attrs))
    assert isinstance(out, tuple) == (len(actual(out)) > 1)


@pytest.mark.parametrize(("use", "dtype"), in_dtypes(DIFFERENTIABLE), ids=str)
def test_result_and_residuals_have_the_declared_types(use, dtype):
    use = use.with_dtype(dtype)
    with jax.enable_x64(dtype == "float64"):
        function = getattr(ops, use.kind)
        out, residuals = jax.eval_shape(
            lambda *xs: function.forward(*xs, **use.keywords()), *structs(use)
        )
    assert actual(out) == declared(use.declaration.infer(use.types, use.all_attrs))
    saved = sorted(i for i in residuals.leaves if i is not None)
    assert saved == sorted(use.declaration.saves(use.types, use.all_attrs))
    assert actual(residuals) == declared(
        use.declaration.residuals(use.types, use.all_attrs)
    )


@pytest.mark.parametrize("use", mostly_slow(DIFFERENTIABLE, each=3))
def test_the_cotangent_of_a_float_operand_has_its_type(use):
    function = getattr(ops, use.kind)

    def program(*xs):
        out, residuals = function.forward(*xs, **use.keywords())
        saved = [xs[i] for i in use.declaration.saves(use.types, use.all_attrs)]
        outs = out if isinstance(out, tuple) else (out,)
        floats = [y if jnp.issubdtype(y.dtype, jnp.floating) else None for y in outs]
        return function.backward(residuals, *saved, *floats)

    cotangents = jax.eval_shape(program, *structs(use))
    for kind, cotangent in zip(declared(use.types), cotangents, strict=True):
        assert (actual(cotangent) or [None]) == [kind if kind.is_float else None]


def keywords_of(fn) -> dict[str, Any]:
    """Return the keywords of a function and of the functions it wraps, with defaults."""
    parameters = inspect.signature(fn, follow_wrapped=False).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return keywords_of(fn.__wrapped__) | own if hasattr(fn, "__wrapped__") else own


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_has_the_declared_attributes_and_defaults(kind):
    declaration = ops.find(kind)
    keywords = keywords_of(getattr(ops, kind).fn)
    keywords.pop("count", None)
    assert ("share" in keywords) == (declaration.own_part is not None)
    keywords.pop("share", None)
    expected = {
        a.name: inspect.Parameter.empty if a.required else a.default
        for a in declaration.attrs
        if not (a.for_parameters or a.compiler_only)
    }
    assert keywords == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_takes_count_if_its_declaration_says_so(kind):
    takes = "count" in keywords_of(getattr(ops, kind).fn)
    uses = [use for use in op_cases.ALL if use.kind == kind]
    takes_count = any(
        use.declaration.takes_count(use.types, use.all_attrs) for use in uses
    )
    assert takes == (takes_count or kind in COUNT_ROWS)


@pytest.mark.parametrize("kind", [k for k in KINDS if not ops.find(k).inserted])
def test_the_example_is_a_valid_line_of_a_spec(kind):
    declaration = ops.find(kind)
    line = yaml.safe_load(op_reference.example(declaration))
    assert line.pop("op") == kind
    line.pop("name")
    line.pop("out", None)
    given = line.pop("in", [])
    operands = [given] if isinstance(given, str) else given
    expected = [o for o in declaration.operands if not o.parameter]
    variadic = any(o.variadic for o in expected)
    minimum = sum(not o.optional for o in expected) + variadic
    assert minimum <= len(operands)
    assert variadic or len(operands) <= len(expected)
    complete(declaration, line, for_parameters=True)
    types = {attr.name: attr.type for attr in declaration.attrs}
    for name, value in line.items():
        assert msgspec.convert(value, types[name]) == value


@pytest.mark.parametrize("kind", KINDS)
def test_the_cases_of_the_op_reference_are_valid(kind):
    declaration = ops.find(kind)
    assert declaration.cases
    assert declaration.doc.endswith(".")
    for case in declaration.cases:
        types = [TensorType.parse(text) for text in case.operands]
        results = declaration.infer(types, complete(declaration, case.attrs))
        names = declaration.result_names(len(results))
        assert len(names) == len(set(names)) == len(results)


@pytest.mark.parametrize("use", op_cases.ALL, ids=str)
def test_flops_are_ints_that_grow_with_the_gradients_computed(use):
    types = declared(use.types)
    forward = use.declaration.flops(types, use.all_attrs)
    assert type(forward) is int
    assert forward >= 0
    wrt = [i for i, t in enumerate(types) if t.is_float]
    amounts = [
        use.declaration.grad_flops(types, use.all_attrs, wrt[:n])
        for n in range(len(wrt) + 1)
    ]
    assert all(type(n) is int for n in amounts)
    assert amounts == sorted(amounts)
    assert amounts[0] == 0


PRODUCTS = [
    use
    for use in DIFFERENTIABLE
    if use.kind in ("fc", "matmul") and "activation" not in use.attrs
]


@pytest.mark.parametrize("use", PRODUCTS, ids=str)
def test_declared_flops_equal_those_of_xla(use):
    # sizes for which the sums of broadcasting cost little compared with the products
    types = [
        TensorType(t.dtype, tuple(16 * d if d > 1 else 1 for d in t.sizes(BATCH)))
        for t in use.types
    ]
    given = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    function = getattr(ops, use.kind)

    def backward(dy, *xs):
        _, residuals = function.forward(*xs, **use.attrs)
        return function.backward(residuals, xs[0], xs[1], dy)[:2]

    def count_flops(fn, *args) -> float:
        return jax.jit(fn).lower(*args).compile().cost_analysis()["flops"]

    (out,) = use.declaration.infer(types, use.all_attrs)
    forward = count_flops(lambda *xs: function(*xs, **use.attrs), *given)
    assert forward == pytest.approx(
        use.declaration.flops(types, use.all_attrs), rel=1e-3
    )
    dy = jax.ShapeDtypeStruct(out.shape, out.dtype)
    assert count_flops(backward, dy, *given) == pytest.approx(
        use.declaration.grad_flops(types, use.all_attrs, (0, 1)), rel=0.02
    )


def test_the_graph_stores_only_attributes_without_default_values():
    fc = ops.find("fc")
    assert condense(fc, {"size": 10, "bias": False, "activation": "none"}) == {}
    given = {"activation": "relu", "size": 10}
    assert condense(fc, given) == {"activation": "relu"}
    assert complete(fc, condense(fc, given)) == {
        "activation": "relu",
        "transpose_w": False,
    }
