"""What the tools of engines say, in messages."""

from __future__ import annotations

from placer.launcher.engines.hints import HINTS
from placer.launcher.engines.said import in_one_line, lines_of, quoting


def test_what_a_tool_says_is_plain_text():
    said = "\x1b[31mno\x1b[0m such\x07 partition\r\n\n\tuse another\xff".encode(
        "latin1"
    )
    lines = ["no such\ufffd partition", "use another\ufffd"]
    assert lines_of(said) == lines
    assert in_one_line(said) == " ".join(lines)
    assert quoting("sbatch failed", said) == "\n    ".join(["sbatch failed:", *lines])


def test_the_first_line_and_the_last_lines_are_shown():
    assert lines_of("a\nb\nc\nd") == ["a", "b", "c", "d"]
    assert lines_of("a\nb\nc\nd\ne") == ["a", "b", "c", "d", "e"]
    assert lines_of("\n".join("abcdefghij")) == [*"abcdefghij"]
    assert lines_of("\n".join("abcdefghijkl")) == ["a", "...", *"defghijkl"]
    assert lines_of("x" * 1000) == ["x" * 400]
    assert (quoting("it failed", ""), in_one_line("")) == ("it failed", "")


def test_there_are_at_most_five_hints():
    """Else they become a translation of the texts of other programs."""
    assert len(HINTS) <= 5
    assert all(hint.reason for hint in HINTS)
