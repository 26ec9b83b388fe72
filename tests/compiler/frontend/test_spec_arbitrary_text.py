"""Any text is accepted or rejected as a spec, and rejecting it is cheap."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.compiler.frontend import json_schema, load_text
from placer.errors import SpecError
from placer.system.resources import find_file

DIGITS = find_file("specs/digits.yaml").read_text(encoding="utf-8")
LIMITS = settings(derandomize=True, deadline=None, max_examples=150)

words = st.sampled_from(
    [
        "name",
        "nodes",
        "worker",
        "ps",
        "count",
        "devices",
        "cpu",
        "inputs",
        "data",
        "train",
        "eval",
        "source",
        "batch",
        "graph",
        "place",
        "ops",
        "op",
        "in",
        "out",
        "size",
        "fc",
        "relu",
        "params",
        "w",
        "h1",
        "h1.w",
        "loss",
        "minimize",
        "optimizer",
        "match",
        "init",
        "parameters",
        "metrics",
        "learning_rate",
        "1",
        "0",
        "-1",
        "1e-3",
        ".nan",
        "~",
        "true",
        "''",
        "/node:worker:0,1",
        "float32[batch,4]",
        "sklearn:iris",
        "lambda",
    ]
)
leaves = words | st.integers() | st.floats() | st.booleans() | st.none() | st.text()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(words | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)


def _read(text: str) -> None:
    """Check that the result is a Model or a SpecError."""
    try:
        result = load_text(text, "model.yaml", Path("nowhere"))
    except SpecError as error:
        result = error
    assert str(result)


@LIMITS
@given(st.text())
def test_any_text(text):
    _read(text)


@LIMITS
@given(st.text(alphabet="[]{}:,-?&*!|>'\"%@` \n\t#ab0./", max_size=60))
def test_any_punctuation(text):
    _read(text)


@LIMITS
@given(trees)
def test_any_yaml(tree):
    _read(yaml.safe_dump(tree, allow_unicode=True))


@LIMITS
@given(st.data())
def test_any_value_in_place_of_any_section(data):
    spec = yaml.safe_load(DIGITS)
    node = spec
    while True:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from(list(keys)))
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            node[key] = data.draw(trees)
            break
        node = inner
    _read(yaml.safe_dump(spec, allow_unicode=True))


@LIMITS
@given(st.integers(0, len(DIGITS)), st.integers(0, 12), st.text(max_size=4))
def test_any_edit_of_a_valid_spec(start, length, text):
    _read(DIGITS[:start] + text + DIGITS[start + length :])


@pytest.mark.parametrize(
    "name",
    ['a"]; __import__("os")', "a\nb", "a\u2028b", "é", "a.b", "", "1a", "a" * 65],
)
def test_only_identifiers_are_names(name):
    quoted = yaml.safe_dump(name, default_style='"').strip()
    text = DIGITS.replace("name: h1", f"name: {quoted}")
    with pytest.raises(SpecError, match=r"cannot be a name|is not allowed in a spec"):
        load_text(text, "model.yaml", Path("nowhere"))


def test_rejecting_a_spec_imports_neither_jax_nor_numpy(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(DIGITS.replace("size: 10", "sise: 10"), encoding="utf-8")
    code = (
        "import sys\n"
        "from placer.compiler.frontend import load\n"
        "try:\n"
        "    load(sys.argv[1])\n"
        "except Exception as error:\n"
        "    print(error)\n"
        "print(sorted({'jax', 'numpy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "unknown key 'sise'" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_json_schema_has_every_section_and_op():
    schema = json_schema()
    sections = schema["$defs"]["Spec"]["properties"]
    assert set(sections) == {
        "name", "nodes", "inputs", "data", "graph", "parameters", "train", "precision",
        "seed", "emulate", "predict",
    }  # fmt: skip
    fc = schema["$defs"]["op.fc"]
    assert fc["required"] == ["name", "op", "in", "size"]
    assert fc["properties"]["activation"]["enum"][1] == "relu"
    assert fc["additionalProperties"] is False
    assert "op.accumulate" not in schema["$defs"]
    entries = {
        item["$ref"].split("/")[-1] for item in schema["$defs"]["Entry"]["anyOf"]
    }
    assert entries <= schema["$defs"].keys()
    assert {"Scope", "ParameterOp", "op.fc", "op.constant"} <= entries


def test_the_json_schema_accepts_the_example_specs():
    schema = json_schema()
    for name in ("digits", "diabetes", "seed_ctr", "two_workers"):
        spec = yaml.safe_load(
            find_file(f"specs/{name}.yaml").read_text(encoding="utf-8")
        )
        _check(spec, {"$ref": schema["$ref"]}, schema["$defs"], name)


def _check(value, schema, defs, where):
    """Check keys and structure by the schema, but not the types of scalars."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].split("/")[-1]]
    if "anyOf" in schema and isinstance(value, dict | list):
        errors = []
        for option in schema["anyOf"]:
            try:
                return _check(value, option, defs, where)
            except AssertionError as error:
                errors.append(str(error))
        raise AssertionError(errors)
    if isinstance(value, dict):
        assert schema.get("type", "object") == "object", where
        properties = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), where
        for key, inner in value.items():
            extra = schema.get("additionalProperties", True)
            assert key in properties or extra, f"{where}: {key}"
            constant = properties.get(key, {}).get("const")
            assert constant in (None, inner), f"{where}: {key}"
            nested = properties.get(key, extra if isinstance(extra, dict) else {})
            if nested:
                _check(inner, nested, defs, f"{where}.{key}")
    elif isinstance(value, list):
        assert schema.get("type", "array") == "array", where
        for item in value:
            _check(item, schema.get("items", {}), defs, f"{where}[]")
    return None
