"""What the keys of a sparse table in a spec may be."""

from typing import Any

import pytest

from placer.plan.settings.mistake import MistakeError
from placer.plan.settings.sparse.sparse_keys import KEYS, read_settings

DEFAULTS: dict[str, Any] = dict.fromkeys(KEYS) | {
    "partitions": 256,
    "admit": "always",
    "evict": "lru",
    "index": "wide",
    "default": 0.0,
}
SCORE = {"show": 1}


@pytest.mark.parametrize(
    ("written", "attr", "message"),
    [
        ({"partitions": 100}, "partitions", "a power of two from 2 to 65536"),
        ({"partitions": 1}, "partitions", "a power of two"),
        ({"capacity": 255}, "capacity", "from 256 "),
        ({"capacity": 2**60}, "capacity", "to 1099511627776"),
        ({"bounds": [1.0, 1.0]}, "bounds", "low < high"),
        ({"bounds": [0.0, 1e39]}, "bounds", "a finite float32 for 'bounds'"),
        ({"default": float("nan")}, "default", "a finite float32 for 'default'"),
        ({"default": -1e300}, "default", "a finite float32 for 'default'"),
        ({"admit": {}}, "admit", "exactly one of count, bloom"),
        ({"admit": {"count": 2, "score": 1.0}}, "admit", "exactly one of"),
        ({"admit": {"bloom": {"count": 256, "bytes": 99}}}, "admit", "255"),
        ({"admit": {"score": 1.0}}, "admit", "has no 'score'"),
        (
            {"admit": {"score": float("inf")}, "score": SCORE},
            "admit",
            "a finite float32 for 'score' of 'admit'",
        ),
        ({"forget": {"unseen_seconds": 9}}, "forget", "'unseen_seconds' and 'time'"),
        ({"forget": {"time": "t"}}, "forget", "'unseen_seconds' and 'time'"),
        ({"forget": {"norm_below": 1e300}}, "forget", "a finite float32"),
        ({"forget": {"score_below": 1.0}}, "forget", "has no 'score'"),
        (
            {"forget": {"score_below": float("nan")}, "score": SCORE},
            "forget",
            "a finite float32 for 'score_below'",
        ),
        (
            {
                "admit": {"count": 2},
                "forget": {"score_below": 0.1, "norm_below": 0.1},
                "score": SCORE,
            },
            "forget",
            "'score_below' never forgets them",
        ),
        (
            {"admit": {"count": 2}, "forget": {"norm_below": 0.1}},
            "forget",
            "'norm_below' never forgets them",
        ),
        (
            {"admit": {"score": 1.0}, "forget": {"norm_below": 0.1}, "score": SCORE},
            "forget",
            "'norm_below' never forgets them",
        ),
        ({"score": {"show_weight": 1e39}}, "score", "a finite float32"),
        ({"score": {"click_weight": -1e39}}, "score", "a finite float32"),
        ({"score": {"click_weight": 2.0}}, "score", "'click_weight' has no effect"),
        ({"forget": {"every": 9}, "score": SCORE}, "forget", "'forget' has no effect"),
        ({"default": 3.0}, "default", "'default' has no effect"),
        ({"index": "compact", "admit": {"count": 2}}, "index", "cannot count keys"),
    ],
)
def test_what_no_table_can_have_is_an_error_of_its_key(
    written: dict[str, Any], attr: str, message: str
) -> None:
    with pytest.raises(MistakeError, match=message) as caught:
        read_settings(DEFAULTS | written)
    assert caught.value.mistake.path[0] == attr


def test_only_what_differs_from_the_defaults_is_in_the_graph() -> None:
    assert read_settings(DEFAULTS) == {}
    written = {"default": 3.4e38, "capacity": 256, "admit": {"probability": 0.5}}
    settings = {**written, "admit": {"type": "probability", "p": 0.5}}
    assert read_settings(DEFAULTS | written) == settings
