"""Mutates valid inputs: their bytes, lines, tokens and trees."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBERS = (
    *("0", "-1", "1", "2", "3", "7", "8", "255", "256", "65535", "65536"),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775807"),
    *("18446744073709551616", "1" + "0" * 400, "1e308", "1e999", "-1e999", "1e-999"),
    *("NaN", "Infinity", ".nan", ".inf", "0.5", "-0.0", "00", "0x10", "1_000", "+1"),
)
"""Numbers at limits: of dtypes, and of what JSON, YAML and Python allow."""

WORDS = (
    *("", " ", "null", "~", "true", "false", "..", "../x", "/etc/passwd", "a.b", "é"),
    *("\x00", "\x1b]0;x\x07", "\u202e", "\ud800", "batch", "worker", "ps:0", "/cpu"),
    *("*", "&a", "!!python/object:os.system", "<<", "{}", "[]", "#", "-", "?", "|"),
)

LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 64, 2**31, 2**63, -(2**63) - 1, 10**400),
    *(0.5, -0.5, 1e308, 1e-320, [], {}, [None], {"": 1}, [[[[]]]], *WORDS),
)

_TOKEN = re.compile(rb"[A-Za-z_][\w.]*|[0-9][\w.+-]*|\s+|.", re.DOTALL)
_NUMBER = re.compile(rb"-?[0-9][0-9.]*(e[-+]?[0-9]+)?")


def mutate_bytes(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of the seeds with one to four mutations."""
    content = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(_CHANGES)(random, content, seeds)
    return content


def mutate_tree(random: Random, seed: Any, change_more: Change | None = None) -> Any:
    """Return a copy of a tree of lists and mappings with one to four mutations."""
    tree = copy.deepcopy(seed)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if change_more is not None and random.random() < 0.4:
            change_more(random, tree)
        else:
            _mutate_tree_once(random, tree)
    return tree


Change = Callable[[Random, Any], None]


def containers(tree: Any) -> list[Any]:
    """Return all non-empty lists and mappings of a tree, including the tree itself."""
    result, pending = [], [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, dict | list) and each:
            result.append(each)
            pending += each.values() if isinstance(each, dict) else each
    return result


def _mutate_tree_once(random: Random, tree: Any) -> None:
    every = containers(tree)
    if not every:
        return
    at = random.choice(every)
    key = random.choice(list(at) if isinstance(at, dict) else range(len(at)))
    other = random.choice(every)
    match random.randrange(8):
        case 0:
            del at[key]
        case 1:
            at[key] = copy.deepcopy(other)
        case 2:
            at[key] = [at[key]]
        case 3 if isinstance(at, dict):
            at[random.choice((*WORDS, *(k for k in other if isinstance(k, str))))] = at[
                key
            ]
        case 3:
            at.append(copy.deepcopy(at[key]))
        case 4:
            values = list(other.values()) if isinstance(other, dict) else other
            at[key] = copy.deepcopy(random.choice(values))
        case 5 if type(at[key]) in (int, float) and abs(at[key]) < 1e300:
            at[key] += random.choice((-1, 1, 0.5, 100, -at[key]))
        case 6 if isinstance(at[key], str) and at[key]:
            text = at[key].encode("utf-8", "surrogatepass")
            at[key] = mutate_bytes(random, [text]).decode("utf-8", "replace")
        case _:
            at[key] = copy.deepcopy(random.choice(LEAVES))


def _spot(random: Random, content: bytes) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    length = random.choice((1, 1, 2, 4, 8, 64))
    return start, min(len(content), start + length)


def _flip(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    if not content:
        return b"\x00"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]  # fmt: skip


def _overwrite(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    start, stop = _spot(random, content)
    fill = random.choice((b"\x00", b"\xff", random.randbytes(1)))
    new = (
        random.randbytes(stop - start)
        if random.random() < 0.5
        else fill * (stop - start)
    )
    return content[:start] + new + content[stop:]  # fmt: skip


def _delete(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    start, stop = _spot(random, content)
    return content[:start] + content[stop:]


def _cut_off(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _repeat(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    start, stop = _spot(random, content)
    return content[:stop] + content[start:stop] * random.choice((1, 3, 50)) + content[stop:]  # fmt: skip


def _splice(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    other = random.choice(seeds)
    start, stop = random.randrange(len(content) + 1), random.randrange(len(other) + 1)
    return content[:start] + other[stop:]


def _lines(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines.insert(i, lines[j])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case _:
            lines[i] = random.choice((b"  ", b"\t", b"- ", b"")) + lines[i].lstrip()
    return b"\n".join(lines)


def _number(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    matches = [*_NUMBER.finditer(content)]
    if not matches:
        return content
    start, stop = random.choice(matches).span()
    return content[:start] + random.choice(NUMBERS).encode() + content[stop:]


def _token(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    tokens = _TOKEN.findall(content) or [b""]
    others = _TOKEN.findall(random.choice(seeds)) or [b""]
    new = random.choice(others)
    if random.random() < 0.4:
        new = random.choice((*WORDS, *NUMBERS)).encode("utf-8", "surrogatepass")
    at = random.randrange(len(tokens))
    tokens[at] = new
    return b"".join(tokens)


def _nest(random: Random, content: bytes, seeds: Sequence[bytes]) -> bytes:
    at, depth = random.randrange(len(content) + 1), random.choice((3, 40, 2000, 50_000))
    opening = random.choice((b"[", b"{", b"(", b'{"a":', b"- ", b'"'))
    closing = b"" if random.random() < 0.5 else b"]" * depth
    return content[:at] + opening * depth + closing + content[at:]


_CHANGES = (
    *(_flip, _overwrite, _delete, _cut_off, _repeat, _splice, _lines, _number),
    *(_number, _token, _token, _nest),
)
