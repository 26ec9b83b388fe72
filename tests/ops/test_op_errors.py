"""Errors of ops and layers: which operand or attribute is wrong, the message and the hint.

A file of `invalid/` has, for each use, the use (of a layer that creates its parameters
after `layer`), then `operand N: MESSAGE`, `ATTRIBUTE: MESSAGE` or `op: MESSAGE`, then
`hint: HINT` if there is one.
"""

from pathlib import Path

import pytest
from support.op_use import Use

from placer.errors import OpError

FILES = sorted((Path(__file__).parent / "invalid").glob("*.txt"))
CASES = [case for file in FILES for case in file.read_text().strip().split("\n\n")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.partition("\n")[0])
def test_the_error_of_an_invalid_use(case):
    line, *expected = case.split("\n")
    use, is_layer = Use.parse(line.removeprefix("layer ")), line.startswith("layer ")
    with pytest.raises(OpError) as caught:
        _ = use.created if is_layer else use.results
    error = caught.value
    at = error.attr or "op" if error.operand is None else f"operand {error.operand}"
    lines = [f"  {at}: {error.message}".replace("\n", "\\n")]
    lines += [f"  hint: {error.hint}"] if error.hint else []
    assert lines == expected
