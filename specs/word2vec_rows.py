"""Rows for word2vec.yaml: pairs of words from the same sentence.

A sentence has one of 20 topics, and each topic has 50 words of its own, of which the
k-th is used 1 / k as often as the first. Words are numbered by decreasing frequency. A
word reveals the topic, and nothing else about the word next to it: the optimum is a
loss over all words of 3.20, and 6.19 without the input word. The seeds are fixed: each
call yields the same rows.
"""

from collections.abc import Iterator
from random import Random

TOPICS = 20
WORDS_OF_TOPIC = 50
WORDS = TOPICS * WORDS_OF_TOPIC
TRAIN_ROWS = 65_536
TEST_ROWS = 4_096

WEIGHTS = [1 / rank for rank in range(1, WORDS_OF_TOPIC + 1)]


def train() -> Iterator[dict[str, int]]:
    """Yield the pairs to train on."""
    return _pairs(seed=1, count=TRAIN_ROWS)


def test() -> Iterator[dict[str, int]]:
    """Yield the pairs to evaluate on: other sentences."""
    return _pairs(seed=2, count=TEST_ROWS)


def _pairs(seed: int, count: int) -> Iterator[dict[str, int]]:
    random = Random(seed)
    for _ in range(count):
        topic = random.randrange(TOPICS)
        word, beside = (
            rank * TOPICS + topic
            for rank in random.choices(range(WORDS_OF_TOPIC), WEIGHTS, k=2)
        )
        yield {"word": word, "beside": beside}
