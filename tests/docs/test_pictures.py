"""The pictures of README.md show what the compiler does."""

import pytest

from tools import pictures


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_up_to_date(name):
    drawn = pictures.draw(name)
    assert pictures.path_of(name).read_text(encoding="utf-8") == drawn, (
        "run: python -m tools.pictures"
    )
