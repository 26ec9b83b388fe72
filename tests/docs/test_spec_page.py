"""`docs/reference/spec.md` agrees with the code."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from placer.compiler.frontend import load_text, schema
from placer.place.types import ITEM_BYTES
from placer.plan.settings.data import cell_options, sources
from placer.plan.settings.training import initializers, optimizers, schedules
from placer.system.resources import find_file

PAGE_PATH = Path(__file__).parents[2] / "docs" / "reference" / "spec.md"
PAGE = PAGE_PATH.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
STRUCTS = [
    value
    for value in (*vars(schema).values(), cell_options.Cells, cell_options.Csv)
    if isinstance(value, type)
    and issubclass(value, msgspec.Struct)
    and value is not msgspec.Struct
]


def test_the_complete_example_loads():
    model = load_text(EXAMPLES[0], "spec.md", find_file("specs"))
    assert model.graph.name == "digits"


def test_the_other_examples_are_sections():
    sections = set(schema.Spec.__struct_fields__)
    for example in EXAMPLES[1:]:
        assert set(yaml.safe_load(example)) <= sections


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_is_on_the_page(struct):
    for key in struct.__struct_encode_fields__:
        assert f"`{key}`" in PAGE or f"{{{key}: " in PAGE, key


def test_every_choice_is_on_the_page():
    words = {
        *initializers.BARE,
        *initializers.WITH_ARGUMENT,
        *optimizers.RULES,
        *schedules.FORMS,
    }
    words |= {*initializers.ALIASES, *initializers.MODES, *initializers.DISTRIBUTIONS}
    for form in schedules.FORMS.values():
        words |= {*form.__struct_encode_fields__}
    words |= {*sources.SKLEARN, *sources.KINDS, *(ITEM_BYTES.keys() - {"key"})}
    for rule in optimizers.RULES.values():
        words |= {*rule.__struct_fields__}
    missing = {word for word in words if not re.search(rf"\b{word}\b", PAGE)}
    assert missing == set()


def test_the_messages_on_the_page_are_current():
    expected = "".join(
        path.read_text(encoding="utf-8")
        for path in (Path(__file__).parents[1] / "compiler/frontend/invalid").glob(
            "*.txt"
        )
    )
    errors = PAGE.partition("\n## Errors\n")[2]
    (example,) = re.findall(r"```text\n(.*?)```", errors, flags=re.DOTALL)
    for message in re.split(r"(?m)^(?=model\.yaml)", example)[1:]:
        assert message in expected
