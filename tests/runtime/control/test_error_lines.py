"""An error in a program names the line, the function and the op that it comes from."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import placer
from placer.errors import RunError
from placer.ops.function import Function
from placer.runtime.control.error_lines import describe_line, locate_error

SPEC = """\
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 4]"}
data: {train: {source: "npz:rows.npz", batch: 4}, eval: {source: "npz:rows.npz"}}
graph:
  - place: /node:worker:0
    ops:
      - {name: first, op: fc, in: x, size: 4}
      - {name: bent, op: tanh, in: first}
      - remat: true
        ops:
          - {name: next, op: sigmoid, in: bent}
          - {name: h_res, op: fc, in: next, size: 4}
  - place: /node:worker:1
    ops:
      - {name: soft, op: softplus, in: h_res}
      - {name: squares, op: square, in: soft}
      - {name: loss, op: reduce_mean, in: squares}
train:
  minimize: loss
  metrics: [loss]
  microbatches: 2
  optimizer: {op: sgd, learning_rate: 0.1}
"""
POSITIONS = {
    "bent": "model.yaml:8:16",
    "next": "model.yaml:11:20",
    "soft": "model.yaml:15:16",
    "squares": "model.yaml:16:16",
}
BACKWARD = "forward_backward"  # of the first stage: it computes `next` again
CASES = [  # the call of an op that fails: its node, function, op and statement
    (0, "forward", "bent", "s.bent, s.bent_res = ops.tanh.forward(first)"),
    (0, "forward", "next", "next_ = ops.sigmoid(s.bent)"),
    (0, BACKWARD, "next", "next_again, next_again_res = ops.sigmoid.forward(bent_again)"),
    (0, BACKWARD, "next", "(d_bent,) = ops.sigmoid.backward(next_again_res, d_next)"),
    (0, BACKWARD, "bent", "(d_first,) = ops.tanh.backward(s.bent_res, d_bent)"),
    (1, "forward_backward", "soft", "soft, soft_res = ops.softplus.forward(h_res)"),
    (
        1, "forward_backward", "squares",
        "(d_soft,) = ops.square.backward(squares_res, soft, d_squares)",
    ),
]  # fmt: skip


@pytest.fixture
def build(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.ones((8, 4), np.float32))
    (tmp_path / "model.yaml").write_text(SPEC)
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    return tmp_path / "build"


def line_of(build, program, statement):
    """Return the number of the only line with this statement."""
    lines = (build / program).read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.strip() == statement)
    return number


def called(statement):
    """Return the method of `Function` and the kind of op that a statement calls."""
    call = re.search(r"ops\.(\w+)(?:\.(\w+))?\(", statement)
    return call[2] or "__call__", call[1]


def expected_position(build, node, function, op, statement):
    program = f"worker-{node}/program.py"
    number = line_of(build, program, statement)
    return f"\n  at {program}:{number}, {function}: op {op} at {POSITIONS[op]}"


@pytest.mark.parametrize(("node", "function", "op", "statement"), CASES)
def test_an_op_that_raises(node, function, op, statement, build, monkeypatch):
    method, kind = called(statement)
    compute = getattr(Function, method)

    def fail(self, *arguments, **attributes):
        if self.kind == kind:
            raise ValueError("no such thing")
        return compute(self, *arguments, **attributes)

    monkeypatch.setattr(Function, method, fail)
    with pytest.raises(RunError) as error:
        placer.launch(build, in_process=True)
    expected = expected_position(build, node, function, op, statement)
    assert str(error.value) == (
        f"worker:{node}: compiling: ValueError: no such thing{expected}"
    )


@pytest.mark.parametrize(("node", "function", "op", "statement"), CASES)
def test_an_op_that_gives_nan(node, function, op, statement, build, monkeypatch):
    method, kind = called(statement)
    compute, report = getattr(Function, method), Function._report
    call = threading.local()  # of this node: nodes are threads

    def watched(self, *arguments, **attributes):
        call.kind = self.kind
        result = compute(self, *arguments, **attributes)
        call.kind = None
        return result

    def report_nan(self, operands, results, part=""):
        fails = getattr(call, "kind", None) == kind
        report(self, operands, [np.float32(np.nan)] if fails else results, part)

    monkeypatch.setattr(Function, method, watched)
    monkeypatch.setattr(Function, "_report", report_nan)
    with pytest.raises(RunError) as error:
        placer.launch(build, in_process=True, debug_nans=True)
    name = f"{kind}.backward" if method == "backward" else kind
    expected = expected_position(build, node, function, op, statement)
    assert str(error.value) == (
        f"worker:{node}: step 1: FloatingPointError: {name} gives nan in 1 of 1 values"
        + expected
    )


@pytest.mark.parametrize(
    ("node", "statement", "described"),
    [
        # A call that fails as a whole, and statements that read its results first.
        (0, "h_res, s = forward(x, p)", "forward: ops {0} to {1}"),
        (0, "node.send(ACTIVATIONS_TO_WORKER1, h_res)", "forward: ops {0} to {1}"),
        (0, "g = forward_backward(s, d_h_res, p, x)", "forward_backward: ops {0} to {1}"),
        (0, "node.sum_microbatches(g=g)", "forward_backward: ops {0} to {1}"),
        (
            0, 'node.update("dense", g_total)  # sgd, learning rate 0.1',
            "forward_backward: ops {0} to {1}",
        ),
        (1, "node.sum_microbatches(loss=loss)", "forward_backward: ops {2} to {3}"),
        (1, "node.record(loss=loss_total)", "forward_backward: ops {2} to {3}"),
        # Statements that use no result of a function, and those without an op.
        (0, 'x = node.read("x")', "step: op x at model.yaml:2:10"),
        (0, "s = ops.Saved()", "forward"),
        (0, "return Dense(first=Fc(*g_first), h_res=Fc(*g_h_res))", "forward_backward"),
        (0, "node.keep_values(s=s, x=x)", "step"),
        (0, 's, x = node.pop_values("s", "x")', "step"),
    ],
)  # fmt: skip
def test_a_statement_names_the_function_whose_results_it_uses(
    node, statement, described, build
):
    program = f"worker-{node}/program.py"
    lines = (build / program).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.strip() == statement)
    ops = (
        "first at model.yaml:7:16", "h_res at model.yaml:12:20",
        "soft at model.yaml:15:16", "loss at model.yaml:17:16",
    )  # fmt: skip
    assert describe_line(build, program, number) == (
        f"at {program}:{number}, {described.format(*ops)}"
    )


def test_every_line_of_a_long_statement_names_its_op(tmp_path):
    name = "a" * 60
    (tmp_path / "model.yaml").write_text(SPEC.replace("first", name))
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    program = "worker-0/program.py"
    lines = (tmp_path / "build" / program).read_text().splitlines()
    start = lines.index(f"    _, *g_{name} = ops.fc.backward(") + 1
    end = lines.index("    )", start) + 1
    assert end > start + 1
    for number in range(start, end + 1):
        described = describe_line(tmp_path / "build", program, number)
        assert described.endswith(f"forward_backward: op {name} at model.yaml:7:16")


def test_a_line_that_the_compiler_did_not_describe(build):
    assert describe_line(build, "worker-0/program.py", 1) == "at worker-0/program.py:1"
    assert describe_line(build, "worker-7/program.py", 1) == "at worker-7/program.py:1"


def test_a_build_whose_sources_were_removed(build):
    (build / "sources.json").unlink()
    assert describe_line(build, "worker-0/program.py", 30) == (
        "at worker-0/program.py:30"
    )


def test_an_error_outside_of_the_program_has_no_line(build):
    with pytest.raises(ValueError, match="invalid literal") as error:
        int("x")
    assert locate_error(build, "worker-0/program.py", error.tb) is None
