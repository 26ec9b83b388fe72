"""Rows for wide_deep.yaml: a user, an item, four measurements, and a click.

The probability of a click depends on three things: the angle between the user and the
item on a circle, which a model can learn with vectors of both; three of the
measurements; and a preference for this pair of user and item, which a model has to
memorize. A model that knows all of this has a loss of 0.365. The seeds are fixed: each
call yields the same rows.
"""

from collections.abc import Iterator
from math import cos, exp
from random import Random

USERS, ITEMS = 60, 40
MEASURED = 4
TRAIN_ROWS = 65_536
TEST_ROWS = 8_192


def train() -> Iterator[dict[str, object]]:
    """Yield the rows to train on."""
    return _rows(seed=1, count=TRAIN_ROWS)


def test() -> Iterator[dict[str, object]]:
    """Yield the rows to evaluate on: the same users and items, other clicks."""
    return _rows(seed=2, count=TEST_ROWS)


def _rows(seed: int, count: int) -> Iterator[dict[str, object]]:
    fixed = Random(0)
    users = [fixed.uniform(0, 6.3) for _ in range(USERS)]
    items = [fixed.uniform(0, 6.3) for _ in range(ITEMS)]
    pairs = fixed.choices((-1.5, 0.0, 1.5), k=USERS * ITEMS)
    random = Random(seed)
    for _ in range(count):
        user, item = random.randrange(USERS), random.randrange(ITEMS)
        measured = [random.uniform(-1, 1) for _ in range(MEASURED)]
        cross = user * ITEMS + item
        near = 3 * cos(users[user] - items[item])
        logit = near + measured[0] - 2 * measured[1] * measured[2] + pairs[cross]
        click = random.random() < 1 / (1 + exp(-logit))
        yield {
            "user": user,
            "item": item,
            "cross": cross,
            "measured": measured,
            "click": [float(click)],
        }
