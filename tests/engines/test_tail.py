"""Files that another process is still writing."""

from placer.engines.tail import Tail


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
