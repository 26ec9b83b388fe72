"""A network of connections whose bytes come late, in parts, or not at all.

It stands for `placer.channel.sockets`, and for the sockets that come from there. What may
happen to a stream of bytes happens: bytes arrive in other parts than they were sent in,
connections overtake each other, one direction is slow or accepts little, a connection
breaks and loses what is on the way, its ends learn that at different times, an attempt to
connect is refused or waits to be accepted until the other side has given up.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from placer.channel import frames
from placer.system.memory.aligned import ALIGNMENT
from support.simulation.files import File, Files
from support.simulation.scheduler import Scheduler

Address = Any
Buffer = bytes | memoryview


@dataclass(frozen=True)
class Weather:
    """What may go wrong on a network: times in seconds, and probabilities.

    Attributes:
        delay: the mean time that bytes are on the way.
        room: the bytes that a direction of a connection accepts before they are read.
        parts: how often less is sent or received than there is room for.
        cuts: how many connections break.
        within: the time in which they do.
        failures: how often an attempt to connect fails.
        late: how often a connection waits for seconds to be accepted.
        forgeries: how often somebody on the way raises the attempt in a HELLO.
        old_ways: how often a connection reaches the oldest of the processes that listen
            at an address, which has moved.
    """

    delay: float = 20e-6
    room: int = 64 << 10
    parts: float = 0.0
    cuts: int = 0
    within: float = 0.1
    failures: float = 0.0
    late: float = 0.0
    forgeries: float = 0.0
    old_ways: float | None = None

    @staticmethod
    def draw(scheduler: Scheduler) -> Weather:
        draw = scheduler.random
        return Weather(
            delay=draw.choice([1e-6, 20e-6, 200e-6, 5e-3]),
            room=draw.choice([2 << 10, 16 << 10, 64 << 10]),
            parts=draw.choice([0.0, 0.1, 0.5]),
            cuts=draw.choice([0, 1, 2, 4, 8]),
            within=draw.choice([1e-3, 5e-3, 50e-3]),
            failures=draw.choice([0.0, 0.2]),
            late=draw.choice([0.0, 0.0, 0.1]),
        )


class Network:
    """The network of a simulation; has the functions of `placer.channel.sockets`."""

    def __init__(self, scheduler: Scheduler, files: Files, weather: Weather) -> None:
        self.scheduler, self.files, self.weather = scheduler, files, weather
        self.random = scheduler.random
        self.connections: list[Socket] = []  # one end of each
        self.breaks = 0
        self._listeners: dict[Address, list[Listener]] = {}

    def begin_cuts(self) -> None:
        """Break connections from now on."""
        for _ in range(self.weather.cuts):
            after = self.random.uniform(0, self.weather.within)
            self.scheduler.after(after, self._cut_one)

    def draw_cut(self) -> None:
        """Break another connection soon, or none."""
        if self.weather.cuts and self.random.random() < 0.5:
            self.scheduler.after(self.random.uniform(0, 1e-3), self._cut_one)

    def _cut_one(self) -> None:
        open_ones = [each for each in self.connections if each.is_whole]
        if open_ones:
            self.breaks += 1
            self.random.choice(open_ones).cut()

    def delay(self) -> float:
        return self.random.expovariate(1 / self.weather.delay)

    # The functions of `sockets`.

    def listen_unix(self, node: str, job: str, where: Address) -> Listener:
        return self._listen(("unix", where))

    def listen_tcp(self, node: str, where: Address) -> Listener:
        return self._listen(where)

    def _listen(self, address: Address) -> Listener:
        listeners = self._listeners.setdefault(address, [])
        assert not listeners or self.weather.old_ways is not None
        listeners.append(Listener(self, address))
        return listeners[-1]

    def forget(self, listener: Listener) -> None:
        self._listeners[listener.address].remove(listener)

    def _find(self, address: Address) -> Listener | None:
        """Return what listens at an address, if anything does."""
        listeners = self._listeners.get(address)
        if not listeners:
            return None
        is_old = len(listeners) > 1 and self.random.random() < self.weather.old_ways
        return listeners[0 if is_old else -1]

    def end(self, node: str) -> None:
        """Close the files of a process that has ended."""
        for file in self.files.owned_by(node):
            file.close()

    def lose(self, node: str) -> None:
        """Lose a machine: what is on the way to and from its processes is lost, and their
        peers learn nothing."""
        for file in self.files.owned_by(node):
            if isinstance(file, Socket):
                file.lose()
            elif isinstance(file, Listener):
                file.close()

    def connect_unix(
        self, job: str, peer: str, where: Address
    ) -> tuple[Socket | None, bool]:
        self.scheduler.step()
        listener = self._find(("unix", where))
        if listener is None:
            return None, False
        mine, theirs = connected_pair(self, socket.AF_UNIX)
        listener.add(theirs)
        return mine, False

    def connect_tcp(self, address: Address) -> Socket | str:
        self.scheduler.step()
        mine, theirs = connected_pair(self, socket.AF_INET)
        mine.is_connecting = True
        fails = self.random.random() < self.weather.failures

        def open_it() -> None:
            listener = self._find(address)
            mine.is_connecting = False
            if listener is None or fails:
                mine.connect_error = errno.EHOSTUNREACH if fails else errno.ECONNREFUSED
                theirs.close()
            elif self.random.random() < self.weather.late:
                late = self.random.uniform(0.0, 12.0)
                self.scheduler.after(late, lambda: listener.add(theirs))
            else:
                listener.add(theirs)
            mine.changed()

        self.connections.append(mine)
        self.scheduler.after(self.delay(), open_it)
        return mine

    def accept(self, listener: Listener) -> Socket | None:
        self.scheduler.step()
        if not listener.accepting:
            return None
        connection = listener.accepting.popleft()
        connection.owner = self.scheduler.current.node
        return connection


class Listener(File):
    """A socket that accepts connections."""

    def __init__(self, network: Network, address: Address) -> None:
        super().__init__(network.files)
        self._network, self.address = network, address
        self.accepting: deque[Socket] = deque()

    def add(self, connection: Socket) -> None:
        if self.closed:
            connection.close()
        else:
            self.accepting.append(connection)
            self.changed()

    def events(self) -> int:
        return select.EPOLLIN if self.accepting else 0

    def close(self) -> None:
        if not self.closed:
            self._network.forget(self)
            for connection in self.accepting:
                connection.close()
        super().close()


class Direction:
    """The bytes from one end of a connection to the other."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._room = network.weather.room
        self.reader: Socket
        self.writer: Socket
        self._on_the_way: deque[tuple[bytes, Sequence[int]]] = deque()
        self._sent = 0  # bytes on the way
        self._is_coming = False  # an event will deliver some
        self.arrived = bytearray()
        self.arrived_files: deque[int] = deque()
        self.is_finished = False  # the writer sends nothing more
        self.has_ended = False  # and the reader has got all
        self.error = 0  # what the reader gets after what has arrived
        self.is_cut = False

    @property
    def room(self) -> int:
        return max(0, self._room - self._sent - len(self.arrived))

    @property
    def is_writable(self) -> bool:
        """As Linux reports it: once a third of the buffer is free."""
        return 3 * self.room >= self._room

    def send(self, data: bytes, files: Sequence[int] = ()) -> None:
        if self.is_cut or self.has_ended:
            return
        if self._network.weather.forgeries:
            data = self._forge(data)
        self._on_the_way.append((data, files))
        self._sent += len(data)
        self._come()

    def _forge(self, data: bytes) -> bytes:
        """Raise the attempt of a HELLO, or return the data as they are."""
        view = memoryview(data)
        is_frame = data[:4] == frames.MAGIC and len(data) >= ALIGNMENT
        if not is_frame or frames.size_of(view) != len(data):
            return data
        hello, _ = frames.decode(view)
        draw = self._network.random
        if not isinstance(hello, frames.Hello) or (
            draw.random() > self._network.weather.forgeries
        ):
            return data
        identity = replace(hello.identity, attempt=hello.identity.attempt + 9)
        return frames.encode(replace(hello, identity=identity))

    def finish(self) -> None:
        self.is_finished = True
        self._come()

    def _come(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            self._network.scheduler.after(self._network.delay(), self._deliver)

    def _deliver(self) -> None:
        """Let some of what is on the way arrive, or the end."""
        self._is_coming = False
        if self.has_ended:
            return
        draw = self._network.random
        while self._on_the_way:
            data, files = self._on_the_way.popleft()
            if len(data) > 1 and draw.random() < self._network.weather.parts:
                cut = draw.randrange(1, len(data))
                self._on_the_way.appendleft((data[cut:], ()))
                data = data[:cut]
            self._sent -= len(data)
            self.arrived += data
            self.arrived_files.extend(files)
            if draw.random() < 0.3:
                break
        if self._on_the_way:
            self._come()
        elif self.is_finished:
            self.has_ended = True
        self.reader.changed()

    def cut(self) -> None:
        """Lose what is sent from now on, and some of what is on the way."""
        self.is_cut = True
        draw = self._network.random
        lost = draw.randrange(self._sent + 1) if self._sent else 0
        data = b"".join(part for part, _ in self._on_the_way)
        files = [file for _, each in self._on_the_way for file in each]
        kept = data[: len(data) - lost]
        self._on_the_way.clear()
        self._sent = 0
        if kept:
            self._on_the_way.append((kept, files))
            self._sent = len(kept)

        def end() -> None:
            if self.has_ended:
                return
            self._deliver()
            self.end(draw.choice([0, errno.ECONNRESET]))

        # Each side learns it at its own time.
        wait = draw.choice([0.0, self._network.delay(), draw.uniform(0, 0.05)])
        self._network.scheduler.after(wait, end)

    def lose(self) -> None:
        """Lose all that is on the way, and what is sent from now on."""
        self.is_cut = True
        for _, files in self._on_the_way:
            for file in files:
                os.close(file)
        self._on_the_way.clear()
        self._sent = 0

    def end(self, error: int = 0) -> None:
        """End at once: nothing more arrives."""
        if not self.has_ended:
            self.has_ended, self.error = True, error
            self.lose()
            self.reader.changed()
            self.writer.changed()


def connected_pair(network: Network, family: int) -> tuple[Socket, Socket]:
    """Return both ends of a new connection."""
    there, back = Direction(network), Direction(network)
    mine, theirs = (
        Socket(network, family, there, back),
        Socket(network, family, back, there),
    )
    there.writer, there.reader = mine, theirs
    back.writer, back.reader = theirs, mine
    theirs.owner = ""  # until it is accepted
    return mine, theirs


class Socket(File):
    """One end of a connection; has the methods of a socket that does not block."""

    def __init__(
        self, network: Network, family: int, out: Direction, incoming: Direction
    ) -> None:
        super().__init__(network.files)
        self.family = family
        self._network = network
        self._out, self._in = out, incoming
        self.is_connecting = False
        self.connect_error = 0
        self._low_water = 1

    @property
    def is_whole(self) -> bool:
        """Whether the connection can break."""
        return not (self.is_connecting or self.connect_error or self.closed) and not (
            self._in.is_cut or self._in.has_ended or self._out.has_ended
        )

    def cut(self) -> None:
        self._in.cut()
        self._out.cut()

    def lose(self) -> None:
        self._in.lose()
        self._out.lose()

    def events(self) -> int:
        if self.is_connecting:
            return 0
        if self.connect_error:
            return select.EPOLLIN | select.EPOLLOUT | _FAILED
        events = 0
        if len(self._in.arrived) >= self._low_water:
            events |= select.EPOLLIN
        if self._in.has_ended:
            events |= select.EPOLLIN | select.EPOLLRDHUP
            if self._out.is_finished or self._in.error:
                events |= select.EPOLLHUP
            if self._in.error:
                events |= select.EPOLLERR | select.EPOLLOUT
        if self._out.is_writable or self._out.has_ended:
            events |= select.EPOLLOUT
        return events

    # Sending.

    def send(self, data: Buffer) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[Buffer], files: Sequence[int] = ()) -> int:
        self._network.scheduler.step()
        if self._out.is_finished:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        if self._in.error or self._out.has_ended:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset")
        room = self._out.room
        if not room:
            raise BlockingIOError
        draw = self._network.random
        if room > 1 and draw.random() < self._network.weather.parts:
            room = draw.randrange(1, room)
        taken: list[bytes] = []
        total = 0
        for buffer in buffers:
            part = bytes(memoryview(buffer).cast("B")[: room - total])
            taken.append(part)
            total += len(part)
            if total == room:
                break
        self._out.send(b"".join(taken), [os.dup(file) for file in files])
        return total

    # Receiving.

    def recvmsg_into(
        self, views: Sequence[memoryview[int]], space: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, Any]:
        self._network.scheduler.step()
        source = self._in
        if not source.arrived:
            if source.error:
                raise ConnectionResetError(source.error, "connection reset")
            if source.has_ended:
                return 0, [], 0, None
            raise BlockingIOError
        limit = len(source.arrived)
        draw = self._network.random
        if limit > 1 and draw.random() < self._network.weather.parts:
            limit = draw.randrange(1, limit)
        was_writable = source.is_writable
        total = 0
        for view in views:
            part = source.arrived[total : min(limit, total + len(view))]
            view[: len(part)] = part
            total += len(part)
            if total == limit:
                break
        del source.arrived[:total]
        if not was_writable and source.is_writable:
            source.writer.changed()
        files = []
        while space and source.arrived_files:
            files.append(source.arrived_files.popleft())
        messages = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files).tobytes())]
            if files
            else []
        )
        return total, messages, 0, None

    # Options and the end.

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def getsockopt(self, level: int, option: int) -> int:
        assert option == socket.SO_ERROR
        error, self.connect_error = self.connect_error, 0
        return error

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if option == socket.SO_RCVLOWAT:
            self._low_water = value
            self.changed()

    def shutdown(self, how: int) -> None:
        self._network.scheduler.step()
        if self._in.error:
            raise OSError(errno.ENOTCONN, "not connected")
        if how == socket.SHUT_RDWR:
            self._in.end()
        if not self._out.is_finished:
            self._out.finish()

    def close(self) -> None:
        if self.closed:
            return
        for file in self._in.arrived_files:
            os.close(file)
        self._in.arrived_files.clear()
        if self._in.arrived and not self._in.has_ended:
            # What it has not read is refused, and with that what it has sent.
            self._out.cut()
        elif not self._out.is_finished:
            self._out.finish()
        self._in.end()
        super().close()


class SimulatedSocketModule:
    """Stands for the module `socket`."""

    socket = Socket

    def send_fds(
        self, connection: Socket, buffers: Sequence[Buffer], files: Sequence[int]
    ) -> int:
        return connection.sendmsg(buffers, files)

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


_FAILED = select.EPOLLERR | select.EPOLLHUP
