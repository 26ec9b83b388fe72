"""Runs with `--trace`: every call and every message of the traced steps is in the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.real_runs import INDEXED_READER, compile_small
from support.sparse_specs import write_sparse_spec
from support.trace_file import read_trace

import placer
from placer.channel.in_process import memory_channels
from placer.errors import PlacerError, RunError
from placer.plan.plan import read_plan
from placer.runtime.control.events import show_output
from placer.runtime.control.execution import Execution
from placer.runtime.control.options import Options
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Programs
from placer.runtime.process.nodes import run_nodes
from placer.runtime.timeline import recording
from placer.runtime.timeline.recorder import Recorder
from placer.runtime.timeline.traced_node import (
    CALLS,
    ITERATORS,
    TracedNode,
    methods,
)
from placer.system.resources import find_file


def compile_spec(name, folder):
    placer.compile(find_file(f"specs/{name}.yaml"), folder / "build")
    return folder / "build"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return compile_spec("digits", tmp_path_factory.mktemp("digits"))


def trace_of(build, folder, **options):
    path = folder / "trace.json"
    result = placer.launch(build, in_process=True, trace=path, **options)
    return read_trace(path), result


def check_messages(trace):
    """Check that what is sent is received, with an arrow for each message."""
    sent = trace.messages("target")
    assert sent == trace.messages("source")
    assert len(trace.arrows) == sent.total()
    for start, end in trace.arrows.values():
        assert end["ts"] > start["ts"]


def test_the_window_has_the_calls_of_the_program_with_their_names(digits, tmp_path):
    trace, result = trace_of(digits, tmp_path, steps=12, trace_steps="10:11")
    assert trace.nodes == ["worker:0", "worker:1", "ps:0", "ps:1"]
    worker, server = trace.names("worker:0"), trace.names("ps:0")
    for names in (worker, server):
        assert [name for name in names if name.startswith("step ")] == [
            "step 10",
            "step 11",
        ]
        assert names["evaluation after step 11"] == 1
    assert worker["forward_backward"] == 2
    assert worker["batch 0"] == 1
    assert worker["h1.w.grad to ps:0"] == 2
    assert worker["h1.w from ps:0"] == 3  # the evaluation receives it once
    assert server["squared_norm"] == server["compute_clip_scale"] == 2
    assert server["update dense"] == 2
    check_messages(trace)
    plan = read_plan(digits)
    assert trace.about["steps"] == "10:11"
    assert (trace.about["model"], trace.about["build"]) == ("digits", plan.digest)
    assert set(result.shares) == set(trace.nodes)
    for shares in result.shares.values():
        assert sum(shares.values()) == pytest.approx(1)
    assert result.shares["worker:0"].keys() >= {"compute", "wait", "send", "read"}


def test_a_slice_is_within_the_call_that_it_is_part_of(digits, tmp_path):
    trace, _ = trace_of(digits, tmp_path, steps=2)
    slices = trace.slices["worker:0", "program"]
    for inner, outer in (
        ("h1.w from ps:0", "receive"),
        ("forward_backward", "step 1"),
        ("h1.w.grad to ps:0", "send"),
    ):
        each = next(each for each in slices if each["name"] == inner)
        assert any(
            other["name"] == outer
            and other["ts"] <= each["ts"]
            and each["ts"] + each["dur"] <= other["ts"] + other["dur"]
            for other in slices
        )


def test_tracing_changes_no_result(digits, tmp_path):
    saved = [tmp_path / name for name in ("plain.safetensors", "traced.safetensors")]
    placer.launch(digits, in_process=True, steps=4, save_params=saved[0])
    trace_of(digits, tmp_path, steps=4, trace_steps="2:3", save_params=saved[1])
    plain, traced = map(load_file, saved)
    assert all(np.array_equal(plain[name], traced[name]) for name in plain)


def test_asynchronous_the_threads_that_send_and_serve_are_shown(tmp_path):
    build = compile_spec("digits_async", tmp_path)
    trace, result = trace_of(build, tmp_path, steps=12)
    check_messages(trace)
    worker = trace.names("worker:0")
    assert worker["pull"] == worker["push"] == 24
    exchanged = trace.names("worker:0", "exchange with ps:0")
    assert exchanged["h1.w.grad.clipped to ps:0"] >= 12
    assert exchanged["drain to ps:0"] == 2
    served = trace.names("ps:0", "service of ps:0")
    assert served["update_from dense"] == 24
    assert served["answer"] >= 12
    assert trace.names("ps:0")["wait_for_workers"] == 12
    assert result.shares["ps:0"]["update"] > 0


def test_updates_by_received_gradients_belong_to_the_step_that_they_precede(tmp_path):
    build = compile_spec("digits_without_server", tmp_path)
    trace, result = trace_of(build, tmp_path, steps=4)
    assert trace.names("worker:0")["update_from dense"]
    assert result.shares["worker:0"]["update"] > 0
    assert trace.names("worker:0")["end step"] == 4


def test_tasks_of_a_pipeline_are_slices_and_each_microbatch_has_its_arrow(tmp_path):
    build = compile_spec("transformer_pipeline", tmp_path)
    trace, _ = trace_of(build, tmp_path, steps=1)
    check_messages(trace)
    names = trace.names("worker:0")
    assert [names[f"forward.{i}"] for i in range(8)] == [1] * 8
    assert [names[f"backward.{i}"] for i in range(8)] == [1] * 8
    assert names["forward"] == names["backward"] == 8
    of_step = Counter(m[2] for m in trace.messages("target"))
    assert of_step[1] == 8


def test_clocks_that_are_not_shared_are_measured(digits, tmp_path, monkeypatch):
    numbers = count()
    monkeypatch.setattr(recording, "clock_name", lambda: str(next(numbers)))
    trace, _ = trace_of(digits, tmp_path, steps=3)
    uncertain = trace.about["clock uncertainty in microseconds"]
    assert list(uncertain) == ["worker:1", "ps:0", "ps:1"]
    for start, end in trace.arrows.values():
        assert end["ts"] > start["ts"] - 2 * max(uncertain.values())
    assert trace.messages("target") == trace.messages("source")


def test_a_full_recorder_ends_no_run_and_the_file_says_it(
    digits, tmp_path, monkeypatch
):
    monkeypatch.setattr(recording, "MAX_OF_NODE", 40)
    trace, _ = trace_of(digits, tmp_path, steps=6)
    assert set(trace.about["slices left out"]) == set(trace.nodes)
    assert sum(map(len, trace.slices.values())) == 4 * 40


def test_a_window_without_steps_of_the_run_is_a_warning(digits, tmp_path, capsys):
    trace, result = trace_of(digits, tmp_path, steps=2, trace_steps="5:9")
    assert not trace.slices
    assert not result.shares
    assert "trace.json has no steps" in capsys.readouterr().err


def test_a_failed_run_leaves_the_slices_of_the_control_node(tmp_path, capsys):
    build = compile_small(tmp_path, rows=INDEXED_READER)
    path = tmp_path / "trace.json"
    with pytest.raises(RunError, match="no such patient"):
        placer.launch(build, in_process=True, trace=path)
    trace = read_trace(path)
    assert "no such patient" in trace.about["failure"]
    assert trace.about["nodes left out"] == ["ps:0"]
    assert trace.names("worker:0")["read"]
    assert "trace.json, without the slices of ps:0" in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_is_the_error_of_the_run(
    digits, tmp_path, monkeypatch, capsys
):
    tried = []

    def fail(path, timeline):
        tried.append(path)
        raise RunError(f"the trace cannot be written to {path}")

    monkeypatch.setattr(recording, "write_timeline", fail)
    path, saved = tmp_path / "trace.json", tmp_path / "params.safetensors"
    with pytest.raises(RunError, match=r"^the trace cannot be written to"):
        placer.launch(digits, in_process=True, steps=1, trace=path, save_params=saved)
    assert tried == [path]
    assert saved.exists()
    assert not capsys.readouterr().err


def test_a_device_is_no_file_for_a_trace(digits):
    with pytest.raises(PlacerError, match="not a regular file"):
        placer.launch(digits, in_process=True, steps=1, trace="/dev/null")


def test_without_a_trace_nothing_is_recorded(digits, monkeypatch):
    def refuse(self, limit):
        raise AssertionError

    monkeypatch.setattr(Recorder, "__init__", refuse)
    placer.launch(digits, in_process=True, steps=1)


def test_steps_to_trace_need_a_trace(digits):
    with pytest.raises(PlacerError, match=r"'trace_steps'.*needs 'trace'"):
        placer.launch(digits, in_process=True, trace_steps="1:2")


def test_other_nodes_learn_why_a_recording_cannot_begin(digits, tmp_path, monkeypatch):
    def refuse(self, limit):
        raise MemoryError("no room for slices")

    monkeypatch.setattr(Recorder, "__init__", refuse)
    plan = read_plan(digits)
    channels = memory_channels([node.name for node in plan.nodes])
    run = Execution(
        plan, digits, plan.node("ps:1"), channels["ps:1"],
        Options(trace=tmp_path / "trace.json"), show_output,
    )  # fmt: skip
    with pytest.raises(RunError, match="no room for slices"):
        run_nodes([run], Programs(digits, plan), None, lambda error: None)
    for channel in channels.values():
        assert channel.aborted is not None, channel.node
        assert channel.aborted.node == "ps:1"
        assert "no room for slices" in channel.aborted.what


def test_every_method_that_a_program_may_call_is_recorded():
    """By construction: each method of `Node` has a category, or is an iterator."""
    assert CALLS.keys().isdisjoint(ITERATORS)
    assert methods() == CALLS.keys() | ITERATORS
    for name in CALLS.keys() | ITERATORS:
        assert getattr(TracedNode, name) is not getattr(Node, name), name
    # What the emitter writes, but for names that it puts together.
    folder = Path(placer.__file__).parent / "compiler" / "emit"
    texts = [path.read_text() for path in folder.glob("*.py")]
    emitted = set(re.findall(r"[\"'` ]node\.([a-z_0-9]+)", "".join(texts)))
    assert {"read", "update_from"} <= emitted
    assert emitted & methods() <= CALLS.keys() | ITERATORS


def test_the_calls_on_rows_of_sparse_tables_have_names(tmp_path):
    spec = write_sparse_spec(tmp_path, servers=1)
    content = json.loads(spec.read_text())
    wide = {"name": "w", "op": "embedding", "in": "items", "sparse": True, "dim": 1}
    content["graph"].insert(3, {**wide, "combiner": "sum"})  # over the keys of i.table
    content["graph"][5]["in"].append("w")
    spec.write_text(json.dumps(content))
    placer.compile(spec, tmp_path / "build")
    trace, result = trace_of(tmp_path / "build", tmp_path, steps=2)
    worker, server = trace.names("worker:0"), trace.names("ps:0")
    for name in ("u.table", "i.table +1"):
        assert worker[f"distinct_keys {name}"], name
        assert server[f"distributed_lookup_table {name}"], name
        assert server[f"update_rows {name}"], name
    for name in ("keys of u.table +2 to ps:0", "receive_rows", "send_row_gradients"):
        assert worker[name], name
    for name in ("receive_keys", "send_rows", "receive_row_gradients"):
        assert server[name], name
    assert result.shares["ps:0"]["rows"] > 0


def test_messages_have_the_names_of_their_values(digits, tmp_path):
    trace, _ = trace_of(digits, tmp_path, steps=2)
    sent = next(
        each
        for each in trace.slices["worker:0", "program"]
        if each["name"] == "h1.b.grad +2 to ps:1"
    )
    assert sent["args"]["values"] == ["h1.b.grad", "logits.w.grad", "logits.b.grad"]


def test_messages_of_sparse_tables_have_the_names_of_their_values(tmp_path):
    spec = write_sparse_spec(tmp_path, servers=1)
    placer.compile(spec, tmp_path / "build")
    trace, _ = trace_of(tmp_path / "build", tmp_path, steps=2)
    worker, server = trace.names("worker:0"), trace.names("ps:0")
    assert worker["keys of u.table +1 to ps:0"]
    assert server["keys of u.table +1 from worker:0"]
    assert server["u.rows +1 to worker:1"] == 4
    assert worker["u.rows.grad +1 to ps:0"] == 2


def test_messages_of_an_asynchronous_sparse_table_have_their_kind_as_name(tmp_path):
    adagrad = {"op": "adagrad", "learning_rate": 0.1, "place": "/node:ps/cpu"}
    spec = write_sparse_spec(tmp_path, optimizer={**adagrad, "update": "async"})
    placer.compile(spec, tmp_path / "build")
    trace, _ = trace_of(tmp_path / "build", tmp_path, steps=2)
    # Keys, gradients and the end of both are messages of one edge.
    worker, served = trace.names("worker:0"), trace.names("ps:0", "service of ps:0")
    for name in ("keys of u.table +1", "u.rows.grad +1", "drain"):
        assert worker[f"{name} to ps:0"], name
        assert served[f"{name} from worker:0"], name
    assert worker["u.rows +1 from ps:0"]


def test_a_wait_names_the_nodes_that_it_waits_for(digits, tmp_path):
    trace, _ = trace_of(digits, tmp_path, steps=2)
    waits = [
        each
        for (node, _), slices in trace.slices.items()
        for each in slices
        if each["cat"] == "wait"
    ]
    assert waits
    for each in waits:
        assert set(each["args"]["for"]) < set(trace.nodes)
    named = [each for each in waits if each["name"] == "wait for ps:0"]
    assert named
    assert all(each["args"]["for"] == ["ps:0"] for each in named)
