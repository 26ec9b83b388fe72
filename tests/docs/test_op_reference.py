"""docs/reference/ops.md is generated from the declarations."""

from pathlib import Path

from placer import ops
from tools import op_reference

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "ops.md"


def test_the_document_is_the_generated_text():
    assert DOCUMENT.read_text(encoding="utf-8") == op_reference.text(), (
        "run: python -m tools.op_reference > docs/reference/ops.md"
    )


def test_the_document_has_each_op_once():
    headings = [
        line.lstrip("#").strip()
        for line in op_reference.text().splitlines()
        if line.startswith("##")
    ]
    kinds = [h for h in headings if h in ops.kinds()]
    assert sorted(kinds) == sorted(ops.kinds())
