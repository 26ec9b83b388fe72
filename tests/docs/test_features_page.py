"""`docs/how-to/features.md` agrees with the code."""

import re
from pathlib import Path

import yaml
from support.feature_formulas import crossed_key, integer_key, text_key

from placer.compiler.frontend import load_text
from placer.plan.settings.data.features import KINDS, Feature

PAGE = (Path(__file__).parents[2] / "docs/how-to/features.md").read_text(
    encoding="utf-8"
)


def test_the_examples_load(tmp_path):
    example, of_times = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    spec = yaml.safe_load(example)
    model = load_text(example, "adult.yaml", tmp_path)
    assert [*model.train.features] == [*spec["data"]["train"]["features"]]
    spec |= yaml.safe_load(of_times)
    model = load_text(yaml.safe_dump(spec), "orders.yaml", tmp_path)
    kinds = {next(iter(each)) for each in spec["data"]["train"]["features"].values()}
    assert {"days", "hour", "weekday"} < kinds
    assert {*model.train.features} == {*spec["data"]["train"]["features"]}


def test_every_key_is_in_a_table():
    assert {*KINDS} | {o for kind in KINDS.values() for o in kind.options} == {
        *Feature.__struct_fields__
    }
    rows = "".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    for key in Feature.__struct_fields__:
        assert f"`{key}`" in rows, key


def test_the_code_computes_keys():
    text, number = text_key("ann", "user"), integer_key(42, "user")
    printed = re.findall(r"^\d+$", PAGE, flags=re.MULTILINE)
    assert [*map(int, printed)] == [text, number, crossed_key([text, number], 0)]
