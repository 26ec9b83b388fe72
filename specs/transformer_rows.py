"""Rows for transformer.yaml: text in a made-up language, one number per character.

The language has 32 words of two or three syllables. A sentence has three random words
and then the first again: "kula supu romata kula.". So a model that remembers the first
word can predict the last: the optimum is a loss of 0.447, and 0.590 without memory. The
seeds are fixed: each call yields the same rows.
"""

from collections.abc import Iterator
from random import Random

CONSONANTS, VOWELS = "klmnprst", "aeiou"
CHARACTERS = CONSONANTS + VOWELS + " ."
WORDS = 32
LENGTH = 48
TRAIN_ROWS = 8_192
TEST_ROWS = 1_024


def train() -> Iterator[dict[str, list[int]]]:
    """Yield the rows to train on."""
    return _rows(seed=1, count=TRAIN_ROWS)


def test() -> Iterator[dict[str, list[int]]]:
    """Yield the rows to evaluate on: the same words, other sentences."""
    return _rows(seed=2, count=TEST_ROWS)


def _rows(seed: int, count: int) -> Iterator[dict[str, list[int]]]:
    """Yield rows of text that start with a sentence, and the next characters."""
    words = _words(Random(0))
    random = Random(seed)
    for _ in range(count):
        text = ""
        while len(text) <= LENGTH:
            text += _sentence(words, random)
        numbers = [CHARACTERS.index(character) for character in text]
        yield {"text": numbers[:LENGTH], "next": numbers[1 : LENGTH + 1]}


def _words(random: Random) -> list[str]:
    words: list[str] = []
    while len(words) < WORDS:
        syllables = range(random.choice((2, 3)))
        word = "".join(
            random.choice(CONSONANTS) + random.choice(VOWELS) for _ in syllables
        )
        if word not in words:
            words.append(word)
    return words


def _sentence(words: list[str], random: Random) -> str:
    first, second, third = random.choices(words, k=3)
    return f"{first} {second} {third} {first}."
