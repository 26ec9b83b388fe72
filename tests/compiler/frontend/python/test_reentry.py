"""Code that nodes import cannot compile or launch, or each would start a run again."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest
from support.free_addresses import free_addresses

import placer
from placer import PlacerError
from placer.system.reentry import node_in_process

MODEL = """\
import placer
from placer import Program, layers, optimizer

def rows():
    for i in range(8):
        yield {"x": [i]}

with Program(
    nodes={"worker": {"count": 2}},
    data={"train": {"source": "python:train:rows", "batch": 4}},
) as program:
    x = layers.data("x", "float32[batch, 1]")
    loss = layers.mean(layers.fc(x, 1))
    optimizer.SGD(0.1).minimize(loss)

"""
COMPILED = 'placer.compile(program, "build")\n'
LAUNCHED = 'print(placer.launch("build"))\n'


def script(text: str, name: str = "__main__") -> None:
    Path("train.py").write_text(MODEL + text)
    runpy.run_path("train.py", run_name=name)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def guarded(text: str) -> str:
    return "if __name__ == '__main__':\n    " + text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (COMPILED + LAUNCHED, "compile"),
        (guarded(COMPILED) + LAUNCHED, "launch"),
        (guarded(COMPILED) + "def main():\n    " + LAUNCHED + "main()\n", "launch"),
    ],
)
def test_a_script_without_a_guard_is_refused_before_any_process(text, what):
    with pytest.raises(PlacerError) as caught:
        script(text)
    assert caught.value.message == (
        f"placer.{what} is called while train.py is imported; every node imports it and"
        " would start the run again"
    )
    assert "__main__" in str(caught.value.hint)
    assert caught.value.span is not None
    assert caught.value.span.text in (MODEL + text).splitlines()
    assert Path("build").exists() == (what == "launch")


def test_a_module_that_compiles_while_it_is_imported_is_refused(monkeypatch):
    Path("train.py").write_text(MODEL + COMPILED)
    monkeypatch.syspath_prepend(".")
    with pytest.raises(PlacerError, match=r"while train\.py is imported"):
        __import__("train")


def test_a_script_with_a_guard_runs():
    launched = 'result = placer.launch("build", in_process=True)\n'
    script(guarded(COMPILED + "    " + launched))


def test_a_script_whose_source_is_elsewhere_needs_no_guard():
    Path("apart.py").write_text('def rows():\n    yield {"x": [1]}\n')
    text = (MODEL + COMPILED).replace("train:rows", "apart:rows")
    Path("train.py").write_text(text)
    runpy.run_path("train.py", run_name="__main__")
    assert Path("build/plan.json").exists()


CALLED_LATE = MODEL.replace("    for i", "    CALL\n    for i") + guarded(COMPILED)


@pytest.mark.parametrize(
    "call", ["placer.compile(program, 'other')", "placer.launch('build')"]
)
@pytest.mark.parametrize(
    "start",
    [
        lambda: placer.launch("build", in_process=True),
        lambda: placer.run("build", "worker:0", endpoints=free_addresses(["worker:0"])),
    ],
    ids=["thread", "process"],
)
def test_a_node_neither_compiles_nor_launches(call, start):
    text = CALLED_LATE.replace('"count": 2', '"count": 1').replace("CALL", call)
    Path("train.py").write_text(text)
    runpy.run_path("train.py", run_name="__main__")
    with pytest.raises(PlacerError) as caught:
        start()
    what = call.partition("(")[0]
    assert f"{what} is called in node worker:0 of a run" in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.text.strip() == call
    assert "PLACER_NODE" not in os.environ


def test_processes_that_a_node_starts_are_refused(monkeypatch):
    monkeypatch.setenv("PLACER_NODE", "worker:3")
    with pytest.raises(PlacerError, match="in node worker:3"):
        placer.compile("model.yaml", "build")
    with pytest.raises(PlacerError, match="in node worker:3") as caught:
        placer.launch("build")
    assert "if this process is not a node, unset PLACER_NODE" in str(caught.value)


def test_a_process_of_two_nodes_is_no_node_after_both_have_ended():
    one, two = node_in_process("worker:0"), node_in_process("worker:1")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert os.environ["PLACER_NODE"] == "worker:1"
    two.__exit__(None, None, None)
    assert "PLACER_NODE" not in os.environ
