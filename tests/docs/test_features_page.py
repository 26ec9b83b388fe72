"""`docs/how-to/features.md` agrees with the code."""

import re
import struct
import textwrap
from pathlib import Path

import xxhash
import yaml
from support.feature_formulas import crossed_key, integer_key, text_key

from placer.compiler.frontend import load_text
from placer.plan.settings.data.features import KINDS, Feature

PAGE = (Path(__file__).parents[2] / "docs/how-to/features.md").read_text(
    encoding="utf-8"
)

REST = """
nodes: {worker: {count: 1}}
graph:
  - {name: e, op: embedding, in: ids, size: [1000, 2]}
  - {name: flat, op: flatten, in: e}
  - {name: both, op: concat, in: [flat, dense], axis: 1}
  - {name: logits, op: fc, in: both, size: 2}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


def test_the_example_loads(tmp_path):
    example, of_times = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    features = yaml.safe_load(example)["data"]["train"]["features"]
    model = load_text(example + REST, "model.yaml", tmp_path)
    assert [*model.train.features] == [*features]
    more = textwrap.indent(of_times, "    ")  # two levels deeper
    times = {*yaml.safe_load(of_times)["features"]}
    example = example.replace("    features:\n", more).replace(
        "dense: [", f"times: [{', '.join(sorted(times))}], dense: ["
    )
    example = example.replace("  label:", "  times: float32[batch, 4]\n  label:", 1)
    model = load_text(example + REST, "model.yaml", tmp_path)
    assert {*model.train.features} > times


def test_every_key_is_in_a_table():
    assert {*KINDS} | {o for kind in KINDS.values() for o in kind.options} == {
        *Feature.__struct_fields__
    }
    rows = "".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    for key in Feature.__struct_fields__:
        assert f"`{key}`" in rows, key


def test_the_code_computes_keys():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    *imports, first, text, number, cross = code.strip().splitlines()
    names = {"struct": struct, "xxhash": xxhash, "key_1": 5, "key_2": 2**64 - 1}
    exec("\n".join([*imports, first]), names)
    assert eval(text, names) == text_key("ann", "user")
    assert eval(number, names) == integer_key(42, "user")
    assert eval(cross, names) == crossed_key([5, 2**64 - 1])
