"""A plain model of choosing passes, in random orders of files, commands and restarts.

The file system is a dictionary; `test_stream_files.py` uses real files.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from placer.checkpoint.manifest import StreamPosition
from placer.errors import DataError
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream import Stream
from placer.plan.settings.data.stream_pass import PassFile, StreamPass
from placer.readers import Column
from placer.readers.streams import FileStream, file_stream

FOLDER, MARKER = Path("/data"), "_DONE"
X = Column("x", "float32", ())


def path_of(name):
    """Return the path of a file; its name here is (day, hour)."""
    return f"clicks/d{name[0]}/h{name[1]}.csv"


NAMES = {path_of((day, hour)): (day, hour) for day in range(40) for hour in range(13)}


class Model:
    """What a stream is, in plain Python; `there` are the rows of the files that exist."""

    def __init__(self, stream, batch):
        self.stream, self.batch = stream, batch
        self.there, self.complete = {}, set()
        self.trained, self.last = {}, None
        self.reported, self.named, self.under_way = set(), set(), set()

    def unit(self, name):
        return name if self.stream.files else name[:1]

    def visible(self):
        return {
            name: rows
            for name, rows in self.there.items()
            if self.stream.files or name[0] in self.complete
        }

    def next_pass(self, visible):
        """Return the next pass and whether it is late; None if its files do not exist yet."""
        new = sorted(name for name in visible if name not in self.trained)
        late = [n for n in new if self.last and self.unit(n) <= self.unit(self.last)]
        in_turn = [name for name in new if name not in late]
        if self.stream.late == "train" and self.rows_of(late) >= self.batch:
            return late, True
        units = sorted({*map(self.unit, in_turn)})
        for count in range(self.stream.files or 1, len(units) + 1):
            files = [name for name in in_turn if self.unit(name) in units[:count]]
            if self.rows_of(files) >= self.batch:
                return files, False
        return None

    def rows_of(self, names):
        return sum(self.there[name] for name in names)

    def new_late(self, visible):
        """Return the late files that this command has not named yet."""
        late = {
            name
            for name in visible
            if name not in self.trained
            and self.last
            and self.unit(name) <= self.unit(self.last)
        }
        fresh = late - self.reported
        self.reported |= late
        return {path_of(name) for name in fresh}

    def new_changed(self, visible):
        """Return the files of ended passes with another size that this command has not named
        yet."""
        changed = {
            name
            for name, rows in visible.items()
            if self.trained.get(name, rows) != rows and name not in self.under_way
        }
        fresh = changed - self.named
        self.named |= changed
        return {path_of(name) for name in fresh}

    def take(self, files, is_late):
        self.trained |= {name: self.there[name] for name in files}
        if not is_late:
            self.last = files[-1]


class Life:
    """A folder of files, and commands that train them, in a random order."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        settings = {"files": self.draw.randint(1, 3)}
        if self.draw.random() < 0.4:
            settings = {"folder": MARKER}
        stream = Stream(**settings, late=self.draw.choice(["skip", "train"]))
        self.model = Model(stream, self.draw.randint(1, 20))
        self.data = RowSource(
            source="csv:clicks/d*/h*.csv",
            batch=self.model.batch,
            remainder="drop",
            stream=stream,
        )
        self.passes, self.latest = 0, 0

    def files(self):
        """Return a stand-in of the module `os`."""
        there = self.model.there

        def stat(path):
            rows = there[NAMES[path.relative_to(FOLDER).as_posix()]]
            return os.stat_result((0, 0, 0, 0, 0, 0, rows, 0, 0, 0))

        return SimpleNamespace(stat=stat)

    def list_stream(self, data, folder):
        return {path_of(name) for name in self.model.visible()}

    def read_facts(self, request):
        path = request.source.path
        rows = self.model.there[NAMES[path]]
        return PassFile(path, rows, 0, rows, {})

    def grow(self):
        """Add a row to a file, which may be trained already."""
        if self.model.there:
            self.model.there[self.draw.choice([*self.model.there])] += 1

    def change(self):
        draws = [self.write, self.write, self.write, self.mark, self.remove, self.grow]
        self.draw.choice(draws)()

    def write(self):
        """Write a file: mostly a later one, else one that may be late."""
        model, draw = self.model, self.draw
        if draw.random() < 0.75:
            self.latest += 1
            day, hour = divmod(self.latest, 4)
        else:
            day, hour = draw.randint(0, 12), draw.randint(0, 12)
        if (day, hour) not in model.there and (day, hour) not in model.trained:
            model.there[day, hour] = draw.randint(0, 12)

    def mark(self):
        """Complete a folder."""
        if self.model.there:
            day, _ = self.draw.choice([*self.model.there])
            self.model.complete.add(day)

    def remove(self):
        """Remove a file, which may be trained already."""
        if self.model.there:
            del self.model.there[self.draw.choice([*self.model.there])]

    def command(self):
        """Train until the end of a command, or a few passes of it."""
        model, draw = self.model, self.draw
        at_start, left, until, name = model.visible(), None, None, None
        model.reported, model.named, model.under_way = set(), set(), set()
        begun = []
        match draw.randint(0, 3):
            case 0:
                until = "now"
            case 1:
                left = draw.randint(1, 2)
            case 2:
                name = draw.randint(0, 8), draw.randint(0, 4)
                until = path_of(name)
                if not model.stream.files:
                    name = name[:1]
                    until = until.rpartition("/")[0]
        trained = {path_of(name): rows for name, rows in model.trained.items()}
        last = path_of(model.last) if model.last else ""
        position = StreamPosition(StreamPass(1, ()), 1, trained, last, 0, 0)
        arguments = self.data, [X], FOLDER, position
        ended = False
        if name is not None and model.last:
            last, trained = model.unit(model.last), {*map(model.unit, model.trained)}
            if name < last and name not in trained:
                with pytest.raises(DataError, match="comes before"):
                    FileStream(*arguments, until=until)
                return
            ended = name <= last
        stream = FileStream(*arguments, until=until, passes_left=left)
        for _ in range(draw.randint(1, 6)):
            visible = model.visible()
            if until == "now":
                visible = {n: r for n, r in visible.items() if n in at_start}
            expected = None if ended else model.next_pass(visible)
            if not ended:
                late, changed = model.new_late(visible), model.new_changed(visible)
            chosen = stream.next_pass(self.passes + 1)
            if not ended:
                assert {*stream.late()} == late
                assert {*stream.changed()} == changed
            if expected is None:
                assert chosen is None
            else:
                files, is_late = expected
                assert [file.path for file in chosen.files] == [*map(path_of, files)]
                assert chosen.rows == model.rows_of(files)
                assert chosen.is_late == is_late
                self.passes += 1
                assert chosen.number == self.passes
                model.take(files, is_late)
                model.under_way.update(files)
                begun.append(chosen)
                if left is not None:
                    left -= 1
                    ended = left == 0
                if name is not None and not is_late:
                    ended = any(model.unit(each) >= name for each in files)
            is_last = ended
            if until == "now":
                is_last = model.next_pass(visible) is None
            assert stream.is_last() == is_last
            if is_last and until == "now":
                assert {*stream.late()} == model.new_late(visible)
                assert {*stream.changed()} == model.new_changed(visible)
            while begun and draw.random() < 0.5:
                done = begun.pop(0)
                stream.end(done)
                model.under_way -= {NAMES[file.path] for file in done.files}
            self.change()
        assert stream.trained == {path_of(n): r for n, r in model.trained.items()}
        assert stream.last == (path_of(model.last) if model.last else "")


def test_passes_are_those_of_a_plain_model(monkeypatch):
    passes = 0
    for seed in range(300):
        life = Life(seed)
        monkeypatch.setattr(file_stream, "os", life.files())
        monkeypatch.setattr(file_stream, "list_stream", life.list_stream)
        monkeypatch.setattr(file_stream, "read_facts", life.read_facts)
        for _ in range(8):
            for _ in range(life.draw.randint(0, 6)):
                life.change()
            life.command()
        passes += life.passes
    assert passes > 1000
