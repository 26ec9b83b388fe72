"""Whatever stands in a file, placer reads it or says what is wrong with it: each input
is a changed copy of a good one, and anything but a PlacerError fails.

`pytest tests/fuzz -m slow` draws for a while; `drawn_cases.py` says how long, and by what.
"""

from __future__ import annotations

import pytest
from support.fuzz.drawn_cases import run_cases
from support.fuzz.formats import FORMATS

NAMES = [format.name for format in FORMATS]
FEW = {"spec": 8, "plan": 12, "sources": 8}
"""How many cases are for every day, where each takes some milliseconds."""


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
