"""Ops of kind `call`: what the compiler derives from a function of the user."""

import re
import textwrap
from pathlib import Path

import pytest

import placer
from placer.compiler.graph.graph import Op
from placer.errors import SpecError

FUNCTIONS = """
import jax
import jax.numpy as jnp


def ffn(params, state, x, *, rng, training):
    return jnp.tanh(x @ params["w"]), state


def centred(params, state, x, *, rng, training):
    return x - x.mean(0), state


def counted(params, state, x, *, rng, training):
    return x, {"seen": state["seen"] + 1.0}


def noisy(params, state, x, *, rng, training):
    return x + jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))(rng), state


def raises(params, state, x, *, rng, training):
    return x @ params["w"][:2], state


def twice(params, state, x, *, rng, training):
    return jnp.concatenate([x, x]), state


def halved(params, state, x, *, rng, training):
    return (x, x[: x.shape[0] // 2].T), state


def pairs(params, state, x, *, rng, training):
    return jnp.tanh(jnp.concatenate([x, x]))[: x.shape[0]] @ x.T @ x, state


def leaves(params, state, x, *, rng, training):
    raise SystemExit(0)


def lonely(params, state, x, *, rng, training):
    return x
"""

SPEC = """
name: called
nodes:
  worker: {count: 2}
inputs:
  x: float32[batch, 4]
  label: int32[batch]
data:
  train: {source: "npz:rows.npz", batch: 8}
graph:
  - {name: h, op: fc, in: x, size: 4}
  - {name: c, op: call, in: h, CALL}
  - {name: loss, op: softmax_cross_entropy, in: [c, label]}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1}
"""
W = "params: {w: {shape: [4, 4], init: xavier_uniform}}"


def compile_call(folder: Path, call: str) -> Op:
    """Compile the spec and return its call, as it is before the first pass."""
    (folder / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    (folder / "called.yaml").write_text(SPEC.replace("CALL", call))
    seen: dict[str, Op] = {}

    def watch(name, graph):
        for op in graph.of_kind("call"):
            seen.setdefault(name, op)

    placer.compile(folder / "called.yaml", folder / "build", after_pass=watch)
    return seen["differentiate"]


def test_residuals_are_in_the_graph(tmp_path):
    call = f'fn: "functions:ffn", batch: rows, {W}, out: "float32[batch, 4]"'
    op = compile_call(tmp_path, call)
    assert op.attrs["saves"] == (0, 1)
    residual = op.results[-1].type
    assert [str(part) for part in residual.parts] == list(op.attrs["keeps"])
    assert "float32[batch, 4]" in op.attrs["keeps"]
    fixed, each = op.attrs["cost"]
    assert fixed + 8 * each >= 2 * 8 * 4 * 4
    assert op.attrs["grad_cost"][1] >= 2 * op.attrs["cost"][1] - 8


def test_the_node_program_calls_the_function_by_its_name(tmp_path):
    compile_call(
        tmp_path, f'fn: "functions:ffn", batch: rows, {W}, out: "float32[batch, 4]"'
    )
    program = (tmp_path / "build" / "worker" / "program.py").read_text()
    assert "\nimport functions\n" in program
    assert re.search(r"= ops\.call\.bind\(\s*functions\.ffn,", program)
    assert (tmp_path / "build" / "functions.py").read_text() == FUNCTIONS


def test_residuals_may_have_any_size(tmp_path):
    op = compile_call(tmp_path, 'fn: "functions:pairs", out: "float32[batch, 4]"')
    assert op.attrs["keeps"]


def test_every_row_has_a_random_key(tmp_path):
    op = compile_call(
        tmp_path, 'fn: "functions:noisy", batch: rows, out: "float32[batch, 4]"'
    )
    assert op.operands[-1] == "batch.position"


def test_state_is_stored_in_each_step(tmp_path):
    op = compile_call(
        tmp_path,
        'fn: "functions:counted", state: {seen: {shape: [], init: zeros}},'
        ' out: "float32[batch, 4]"',
    )
    assert [value.name for value in op.results[:2]] == ["c", "c.seen.new"]
    program = (tmp_path / "build" / "worker-0" / "program.py").read_text()
    assert 'node.store("state", new)' in program


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            f'fn: "functions:ffn", {W}, out: "float32[batch, 5]"',
            "op 'c' (call): functions:ffn returns float32[batch, 4], but the spec has"
            " float32[batch, 5]",
        ),
        (
            'fn: "functions:centred", batch: rows, out: "float32[batch, 4]"',
            "functions:centred has batch: rows, but returns different results for half of"
            " the rows",
        ),
        (
            'fn: "functions:missing", out: "float32[batch, 4]"',
            "functions.py has no function 'missing'",
        ),
        (
            f'fn: "functions:raises", {W}, out: "float32[batch, 4]"',
            "functions:raises raised TypeError: ",
        ),
        (
            'fn: "functions:leaves", out: "float32[batch, 4]"',
            "functions:leaves raised SystemExit: 0 (functions.py:39)",
        ),
        (
            'fn: "functions:lonely", out: "float32[batch, 4]"',
            "functions:lonely must return a pair: its outputs and its state",
        ),
        (
            'fn: "functions:twice", out: "float32[batch, 4]"',
            "dimension 0 of result 0 of functions:twice changes with the batch but is"
            " not the batch: 28 for 14 rows, 116 for 58",
        ),
        (
            'fn: "functions:halved", out: [c: "float32[batch, 4]", t: "float32[4, 8]"]',
            "dimension 1 of result 1 of functions:halved changes with the batch but is"
            " not the batch: 7 for 14 rows, 29 for 58",
        ),
    ],
)
def test_mismatches_are_reported_at_the_op(tmp_path, call, message):
    with pytest.raises(SpecError) as caught:
        compile_call(tmp_path, call)
    text = str(caught.value)
    assert message in text
    assert "called.yaml:12:12: op 'c' (call): " in text


def test_an_error_names_the_line_of_the_function(tmp_path):
    with pytest.raises(SpecError, match=r"\(functions.py:23\)"):
        compile_call(tmp_path, f'fn: "functions:raises", {W}, out: "float32[batch, 4]"')
