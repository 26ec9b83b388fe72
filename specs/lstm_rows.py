"""Rows for lstm.yaml: strings that an automaton writes, half of them with an error.

The automaton is that of Reber (1967): in each state it writes one of two letters at
random and moves on, until the last state; only strings of 10 to 24 letters are used. In
every second string, one letter except the last is replaced so that the automaton cannot
write the string. A row has 24 numbers, one per letter, the number of letters, and
whether the automaton could have written the string. The seeds are fixed: each call
yields the same rows.
"""

from collections.abc import Iterator
from random import Random

LETTERS = "BTPSXVE"
AUTOMATON = (
    {"B": 1},
    {"T": 2, "P": 3},
    {"S": 2, "X": 4},
    {"T": 3, "V": 5},
    {"X": 3, "S": 6},
    {"P": 4, "V": 6},
    {"E": 7},
)
LAST = len(AUTOMATON)
SHORTEST, LENGTH = 10, 24
TRAIN_ROWS = 16_384
TEST_ROWS = 2_048


def train() -> Iterator[dict[str, object]]:
    """Yield the rows to train on."""
    return _rows(seed=1, count=TRAIN_ROWS)


def test() -> Iterator[dict[str, object]]:
    """Yield the rows to evaluate on, with another seed."""
    return _rows(seed=2, count=TEST_ROWS)


def _rows(seed: int, count: int) -> Iterator[dict[str, object]]:
    random = Random(seed)
    for number in range(count):
        right = number % 2 == 0
        text = _written(random) if right else _mistaken(random)
        letters = [LETTERS.index(letter) for letter in text.ljust(LENGTH, "B")]
        yield {"letters": letters, "length": len(text), "right": int(right)}


def _written(random: Random) -> str:
    """Run the automaton until it writes a string of the right length."""
    while True:
        text, state = "", 0
        while state != LAST:
            letter = random.choice(list(AUTOMATON[state]))
            text, state = text + letter, AUTOMATON[state][letter]
        if SHORTEST <= len(text) <= LENGTH:
            return text


def _mistaken(random: Random) -> str:
    while True:
        text = _written(random)
        at = random.randrange(len(text) - 1)
        wrong = text[:at] + random.choice(LETTERS) + text[at + 1 :]
        if not _is_right(wrong):
            return wrong


def _is_right(text: str) -> bool:
    state = 0
    for letter in text:
        if state == LAST or letter not in AUTOMATON[state]:
            return False
        state = AUTOMATON[state][letter]
    return state == LAST
