"""The constants at the top of a program: edges, random streams, functions of the user."""

import ast
import re
from pathlib import Path

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import compile as compile_model
from placer.plan.plan import read_plan
from placer.system.resources import find_file

EDGE = re.compile(r"^([A-Z][A-Z0-9_]*(?<!_STREAM)) = (\d+)$", re.MULTILINE)


def compiled(spec: str, out: Path) -> dict[str, str]:
    """Return the text of each program of a spec in the repository, by its path."""
    plan = compile_model(find_file(f"specs/{spec}.yaml"), out)
    return {node.program: (out / node.program).read_text() for node in plan.nodes}


@pytest.mark.parametrize(
    "spec", ["digits", "lamb", "digits_cnn", "digits_threads", "heter_sparse"]
)
def test_each_edge_of_a_program_has_one_name_that_the_program_uses(spec, tmp_path):
    programs = compiled(spec, tmp_path)
    plan = read_plan(tmp_path)
    phases = (plan.step_edges, plan.evaluation_edges, plan.prediction_edges)
    edges = {edge.id: edge for phase in phases for edge in phase}
    for node in plan.nodes:
        text = programs[node.program]
        names = dict(EDGE.findall(text))
        numbers = [int(number) for number in names.values()]
        assert len(numbers) == len({*numbers}) == len(EDGE.findall(text))
        for name, number in names.items():
            assert len(re.findall(rf"\b{name}\b", text)) > 1, name
            edge = edges[int(number)]
            assert node.name in (*edge.sources, *edge.targets)
            if "_TO_" not in name and "_FROM_" in name:
                assert node.name in edge.targets, name
            if name.endswith(("_TO_WORKERS", "_TO_SERVERS")) and "FROM" not in name:
                assert node.name in edge.sources, name


def test_messages_among_workers_have_the_name_of_a_collective_operation(tmp_path):
    program = compiled("digits_all_reduce", tmp_path)["worker-0/program.py"]
    assert [name for name, _ in EDGE.findall(program)] == [
        "ALL_GATHER_PARAMETERS",
        "REDUCE_SCATTER_GRADIENTS",
        "REDUCE_SQUARED_GRADIENT_NORMS_TO_WORKER0",
        "BROADCAST_SQUARED_GRADIENT_NORMS_FROM_WORKER0",
        "EVAL_ALL_GATHER_PARAMETERS",
        "PREDICT_ALL_GATHER_PARAMETERS",
    ]


def test_messages_with_the_same_kind_of_values_are_told_apart_by_a_value(tmp_path):
    program = compiled("lamb", tmp_path)["ps-0/program.py"]
    names = [name for name, _ in EDGE.findall(program)]
    assert len([name for name in names if name.endswith("_NORMS_FROM_PS1")]) == 2


def test_a_value_with_the_name_of_an_edge_gets_another_one(tmp_path):
    text = two_layers().replace("{name: h,", "{name: GRADIENTS_TO_PS0,")
    text = text.replace("in: h,", "in: GRADIENTS_TO_PS0,")
    compile_model(load_model(text), tmp_path)
    program = (tmp_path / "worker/program.py").read_text()
    assert "GRADIENTS_TO_PS0_2, GRADIENTS_TO_PS0_res = ops.fc.forward" in program
    assert "node.send(GRADIENTS_TO_PS0, " in program


def test_random_streams_and_functions_of_the_user_are_constants(tmp_path):
    program = compiled("custom_op", tmp_path / "custom")["worker/program.py"]
    module = ast.parse(program)
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and "mixer" in ast.unparse(node.func)
    ]
    assert {*calls} == {"mixer", "mixer.forward", "mixer.backward"}
    assert program.count("ops.call.bind(") == 1
    assert "stream=" not in program[program.index("class Dense") :]
    other = compiled("digits_cnn", tmp_path / "cnn")["worker-0/program.py"]
    assert "rate=0.4, stream=THINNED_STREAM" in other
