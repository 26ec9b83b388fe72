"""Rows for transformer.yaml: text in a made-up language, one number a character.

It has 32 words of two or three syllables. A sentence is three of them, drawn at random,
and then the first again: "kula supu romata kula.". So its last word is known to whoever
remembers the first: the best a model can do is a loss of 0.447, and 0.590 without
memory. All is drawn from fixed seeds: each call yields the same rows.
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
    """Rows of text that begin with a sentence, and the character after each."""
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
