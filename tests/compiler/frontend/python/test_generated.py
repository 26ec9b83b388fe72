"""placer/layers.py and placer/optimizer.py agree with the declarations."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from placer import layers, optimizer
from placer.compiler.frontend.entries.op_kinds import op_kinds
from placer.compiler.frontend.python.sparse_admission import ENTRIES
from placer.plan.settings.training import optimizers
from tools import generate_python

PACKAGE = Path(__file__).parents[4] / "placer"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("layers.py", generate_python.layers_text),
        ("optimizer.py", generate_python.optimizers_text),
    ],
)
def test_the_file_is_the_generated_text(file, text):
    assert (PACKAGE / file).read_text(encoding="utf-8") == text(), (
        "run: python -m tools.generate_python"
    )


def test_every_kind_of_a_spec_has_a_function():
    wanted = {"mean_metric" if kind == "mean" else kind for kind in op_kinds()}
    others = {"call", "cross_entropy", "data", "mean", "parameter"}
    others |= {"Embedding", "sparse_embedding", *ENTRIES}
    assert set(layers.__all__) == wanted | others


def test_every_rule_has_a_function():
    assert [
        name.lower() for name in sorted(optimizer.__all__, key=str.lower)
    ] == sorted(rule.replace("_", "") for rule in optimizers.RULE_NAMES)


def test_each_setting_of_an_optimizer_is_documented_once():
    shared = {each.name for each in fields(optimizer.Optimizer)} - {"_"}
    for name in ("Optimizer", *optimizer.__all__):
        each = getattr(optimizer, name)
        documented = re.findall(r"^    (\w+): ", inspect.getdoc(each), re.MULTILINE)
        if name == "Optimizer":
            wanted = shared
        elif name == "Optax":
            wanted = {field.name for field in fields(each)} - shared | {"learning_rate"}
        else:
            wanted = optimizers.RULES[each.rule].__struct_fields__
        assert sorted(documented) == sorted(wanted), name


@pytest.mark.parametrize("name", sorted(op_kinds()))
def test_a_function_has_the_attributes_and_their_defaults(name):
    function = getattr(layers, "mean_metric" if name == "mean" else name)
    parameters = inspect.signature(function).parameters
    assert inspect.getdoc(function)
    for attr in op_kinds()[name].attrs:
        if attr.compiler_only:
            continue
        default = inspect.Parameter.empty if attr.required else attr.default
        assert parameters[attr.name].default == default
    assert parameters["name"].default is None
