"""Files that another process is still writing."""

import pytest

from placer.launcher.engines.tail import Tail


def test_lines_come_when_they_are_complete(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    assert tail.read() == []
    path.write_bytes(b"a\nb")
    assert tail.read() == [b"a"]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b"c\n\nd\n")
    assert tail.read() == [b"bc", b"", b"d"]


def test_a_line_that_does_not_end_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("placer.launcher.engines.tail.MAX_LINE", 2 << 20)
    path = tmp_path / "events"
    path.write_bytes(b"x" * (2 << 20))
    tail = Tail(path)
    assert tail.read() == []
    assert tail.is_within_line
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="events' has a line of more than 2 MiB"):
        tail.read()


def test_a_long_line_is_read_in_parts(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    long = bytes(range(1, 10)) * 400_000
    path.write_bytes(long)
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(long + b"\nb")
    assert tail.read() == [long + long]
