"""The plans of all specs: their schema, and that the nodes of a run fit together."""

import ast
import json
import re

import pytest
from support.plan_mistakes import find_mistakes, plant_mistakes

from placer.compiler.driver import compile as compile_model
from placer.compiler.frontend import load
from placer.plan.hooks import HOOKS
from placer.plan.plan import (
    VERSION,
    json_schema,
    read_plan,
    read_sources,
    to_json,
    with_digest,
)
from placer.runtime.timeline.traced_node import CALLS, ITERATORS
from placer.system.resources import find_file

SPECS = sorted(path.stem for path in find_file("specs").glob("*.yaml"))


@pytest.fixture(scope="module", params=SPECS)
def compiled(request, tmp_path_factory):
    """The plan of a spec, and the folder of its build."""
    folder = tmp_path_factory.mktemp(request.param)
    return compile_model(load(find_file(f"specs/{request.param}.yaml")), folder), folder


def problems(value, schema, defs, at="plan"):
    """Return what the schema forbids of a JSON value, by the keywords that it uses."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        found = [problems(value, one, defs, at) for one in schema["anyOf"]]
        return [] if [] in found else [f"{at}: matches none of {len(found)}"]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at}: {value}"]
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return [f"{at}: {type(value).__name__} is not {schema['type']}"]
    messages = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        messages += [
            f"{at}: no {key}" for key in schema.get("required", ()) if key not in value
        ]
        rest = schema.get("additionalProperties", True)
        for key, inner in value.items():
            if key in known:
                messages += problems(inner, known[key], defs, f"{at}.{key}")
            elif isinstance(rest, dict):
                messages += problems(inner, rest, defs, f"{at}.{key}")
            elif not rest:
                messages.append(f"{at}: unknown {key}")
    if isinstance(value, list):
        fixed = schema.get("prefixItems", ())
        if fixed and len(fixed) != len(value):
            messages.append(f"{at}: {len(value)} items, not {len(fixed)}")
        for i, inner in enumerate(value):
            one = fixed[i] if i < len(fixed) else schema.get("items", {})
            if isinstance(one, dict):
                messages += problems(inner, one, defs, f"{at}[{i}]")
    return messages  # fmt: skip


def test_a_plan_matches_its_json_schema(compiled):
    plan = json.loads((compiled[1] / "plan.json").read_text())
    schema = json_schema()
    assert problems(plan, schema, schema["$defs"]) == []
    plan["nodes"][0]["flops"] = "many"
    plan["surprise"] = 1
    del plan["settings"]["train"]["metrics"]
    assert problems(plan, schema, schema["$defs"]) == [
        "plan.settings.train: no metrics",
        "plan.nodes[0].flops: str is not integer",
        "plan: unknown surprise",
    ]


def test_a_plan_is_read_back_as_it_was_written(compiled):
    plan, folder = compiled
    assert read_plan(folder) == plan
    assert (folder / "plan.json").read_text() == to_json(plan)
    assert with_digest(plan) == plan
    assert plan.version == VERSION


def test_each_jitted_function_of_a_step_has_its_segment(compiled):
    plan, folder = compiled
    step = (folder / "graph.txt").read_text().partition("\n}")[0]
    segments = {int(number) for number in re.findall(r"segment = (\d+)", step)}
    for node in plan.nodes:
        assert set(node.functions.values()) <= segments
        module = ast.parse((folder / node.program).read_text(encoding="utf-8"))
        functions = [each for each in module.body if isinstance(each, ast.FunctionDef)]
        jitted = {each.name for each in functions if each.decorator_list}
        called = {
            call.func.id
            for each in functions
            if each.name in ("step", "serve")
            for call in ast.walk(each)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        }
        assert node.functions.keys() == jitted & called, node.name


def test_every_call_of_a_program_is_recorded_with_trace(compiled):
    plan, folder = compiled
    for path in {node.program for node in plan.nodes}:
        module = ast.parse((folder / path).read_text(encoding="utf-8"))
        called = {
            ast.unparse(call.func)
            for hook in module.body
            if isinstance(hook, ast.FunctionDef) and hook.name in HOOKS
            for call in ast.walk(hook)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        }
        assert called <= {f"node.{name}" for name in CALLS.keys() | ITERATORS}, path


def test_sources_have_one_op_a_line(compiled):
    _, folder = compiled
    sources, text = read_sources(folder), (folder / "sources.json").read_text()
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    for name, (line, column) in sources.ops.items():
        assert f'"{name}": [{line},{column}]' in lines
    entries = [len(sources.ops), len(sources.data), *map(len, sources.lines.values())]
    # The other lines have braces, the path of a program, or another field.
    assert len(lines) <= sum(entries) + 2 * len(sources.lines) + 11


def test_every_row_is_returned_once_and_every_message_is_answered(compiled):
    """So it is not where an output or an edge of the plan is changed."""
    plan, _ = compiled
    assert [*find_mistakes(plan)] == []
    planted = {what: [*find_mistakes(wrong)] for what, wrong in plant_mistakes(plan)}
    assert planted
    assert [what for what, found in planted.items() if not found] == []


def test_each_worker_sends_its_own_difference(compiled):
    plan, _ = compiled
    answers = {
        edge.sources: edge for edge in plan.step_edges if edge.exchange == "pull"
    }
    for edge in plan.step_edges:
        if edge.exchange == "push_delta":
            # The server answers each worker with whole parameters of the same size.
            assert edge.nbytes == answers[edge.targets].nbytes
