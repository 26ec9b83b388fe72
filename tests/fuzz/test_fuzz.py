"""placer reads a damaged file or raises PlacerError; any other exception fails.

Each input is a mutated copy of a valid file. `pytest tests/fuzz -m slow` runs many of
them; see `tests/support/fuzz/drawn_cases.py` for the number of seconds and the seed.
"""

from __future__ import annotations

import pytest
from support.fuzz.drawn_cases import run_cases
from support.fuzz.formats import FORMATS

NAMES = [format.name for format in FORMATS]
FEW = {"spec": 8, "plan": 12, "sources": 8}
"""The number of cases in every run of the tests, where a case takes long."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("format", FORMATS, ids=NAMES)
def test_a_few_changed_files_are_read_or_refused(format, work):
    assert run_cases(format, work, count=FEW.get(format.name, 25))


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS, ids=NAMES)
def test_changed_files_are_read_or_refused(format, work):
    count = run_cases(format, work)
    assert count
    print(f"{format.name}: {count:,} cases")
