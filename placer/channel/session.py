"""A channel between processes: how a run starts, stays alive, fails and ends.

All of this is the same for every transport between processes; a transport moves frames
(`shared`, `tcp`, `zeromq`). The session of a node has one thread. It connects the peers, sends
heartbeats, finds peers that are silent, and reports failures, so a node that computes
for minutes stays alive for the others.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from placer.channel.cause import Aborted, Cause
from placer.channel.endpoint import loopback_endpoint
from placer.channel.frame_bodies import Hello
from placer.channel.liveness import Liveness
from placer.channel.protocol import Channel
from placer.errors import RunError, did_you_mean
from placer.memory.arena import Arena

CONNECT_PAUSE: Final = 0.02
"""Seconds between two attempts to connect to peers that are not there yet."""
LATE_JOIN_WAIT: Final = 5.0
"""Seconds that a failed node stays for peers that have not connected yet: enough for
nodes that were started together to come up."""
CLOSE_LINGER: Final = 1.0
"""Seconds that `close` waits until the last frames (GOODBYE, ABORT) are sent."""


class Session(Channel):
    """The channel of one node; every node is a process of its own on this machine.

    Opening it starts its thread, which connects to the peers. A transport implements
    what is abstract here and in `protocol.Channel`; `transport` is its name in errors.

    Args:
        node: the name of this node.
        endpoints: the address of every node of the run ("worker:0" ->
            "127.0.0.1:4321").
        job: a name that all nodes of a run have, and no other run. Processes that
            cannot guess it are refused.
        join_timeout: seconds that `join` waits at most.
        lost_after: seconds of silence after which a peer is lost.
        limits: the fields of `types.Limits`.

    Raises:
        RunError: the node has no address or an address that is not loopback, another
            process listens as this node, or the system lacks what the transport needs.
    """

    transport: ClassVar[str]
    # `_open` sets these.
    connected: Collection[str]
    """The peers that are connected."""
    _informed: Collection[str]
    """The peers that know of the failure of this node."""

    def __init__(
        self,
        node: str,
        endpoints: Mapping[str, str],
        job: str,
        *,
        join_timeout: float = 600.0,
        lost_after: float = 8.0,
        **limits: Any,
    ) -> None:
        if node not in endpoints:
            raise RunError(
                f"no address for node '{node}'", hint=did_you_mean(node, endpoints)
            )
        self._addresses = {
            name: loopback_endpoint(name, text) for name, text in endpoints.items()
        }
        self._names = sorted(endpoints)
        super().__init__(node, [n for n in self._names if n != node], **limits)
        self._arena = Arena()  # of received arrays
        self._endpoints = dict(endpoints)
        self._job = job
        self._join_timeout = join_timeout
        self._lost_after = lost_after
        self._tick = min(self._limits.beat / 2, lost_after / 16, 0.1)
        self._liveness = Liveness(lost_after, self._limits.beat)
        self._unreported: list[Cause] = []  # failures to report to the peers
        self._joined = False
        self._flushing = False
        self._close_lock = threading.Lock()
        self._open()
        self._thread = threading.Thread(
            target=self._run, name=f"placer channel of {node}", daemon=True
        )
        self._thread.start()

    # Called by the program.

    def join(self) -> None:
        """Wait until every peer is connected; see `protocol.Channel`."""
        mailbox = self.mailbox

        def missing() -> list[str]:
            return [peer for peer in mailbox.peers if peer not in self.connected]

        mailbox.wait_until(
            lambda: not missing() or bool(mailbox.departed), self._join_timeout
        )
        absent = missing()
        if absent and mailbox.departed:
            left = ", ".join(sorted(mailbox.departed))
            raise RunError(f"{left} left before all had joined")
        if absent:
            raise RunError(
                "; ".join(
                    f"{peer} did not join within {self._join_timeout:g} s "
                    f"({self._endpoints[peer]})"
                    for peer in absent
                ),
                hint=f"start the node; {self.node} is at {self._endpoints[self.node]} "
                f"over {self.transport}, and all nodes of a run must use the same "
                "transport",
            )
        self._joined = True

    def abort(self, cause: Cause) -> None:
        """End the run on every node; see `protocol.Channel`."""
        if self.mailbox.abort(cause) and not self._closed:
            self._broadcast_abort(cause)
            self._wake()

    def close(self) -> None:
        """Deliver what was sent, say goodbye, and leave no thread and no socket.

        Waits up to the deadline until the peers have what was sent to them. After a
        failure nothing is delivered, but peers that have not connected yet get
        `LATE_JOIN_WAIT` seconds to connect and learn the cause: they would else wait
        for this node until their own `join_timeout`.
        """
        # The order matters. The thread runs until everything is delivered, because it
        # handles acknowledgements. `_closed` then refuses new calls. The thread ends
        # before the mailbox closes, which waits until no thread reads a socket, so that
        # the sockets can be closed.
        assert threading.current_thread() is not self._thread
        with self._close_lock:
            if self._closed:
                return
            if self.aborted is None and self._joined:
                self._flush()
            elif self.aborted is not None and not self._joined:
                self.mailbox.wait_until(self._all_informed, LATE_JOIN_WAIT, failed=True)
            self._closed = True
            self._wake()
            self._thread.join()
            self.mailbox.close()
            self._close_sockets()

    def _check_open(self) -> None:
        super()._check_open()
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    def _flush(self) -> None:
        """Wait until everything that was sent has left this node."""

        def delivered() -> bool:
            return not self._undelivered_peers() - self.mailbox.departed

        self._flushing = True
        for peer in self._undelivered_peers() - self.mailbox.departed:
            self._request_delivery(peer)
        # A failure ends the flush; the caller finds it in `aborted`.
        with suppress(Aborted):
            self.mailbox.wait_until(delivered, self._limits.deadline)

    def _all_informed(self) -> bool:
        known = {*self._informed, *self.mailbox.departed}
        return known.issuperset(self.mailbox.peers)

    # For the transport.

    def _fail(self, cause: Cause) -> None:
        """Record a failure found here; the thread reports it to the peers.

        May be called by a thread that reads a socket, so it does not wait.
        """
        if self.mailbox.abort(cause):
            self._unreported.append(cause)
            self._wake()

    def _hello(self, sender: str, receiver: str) -> Hello:
        """Return the body of the HELLO from one node to another."""
        return Hello(self._job, sender, receiver, self._names)

    # Run by the thread.

    def _run(self) -> None:
        due = beat_due = 0.0
        try:
            while not self._closed:
                settled = self._joined and not self._flushing
                pause = self._tick if settled else min(CONNECT_PAUSE, self._tick)
                self._poll(pause)
                self._report_failures()
                now = time.monotonic()
                if now >= due:
                    due = now + pause
                    is_beat = now >= beat_due
                    if is_beat:
                        beat_due = now + self._limits.beat
                    self._on_tick(now, is_beat)
            self._report_failures()
        except Exception as error:
            # Without this thread nothing would end a wait before its deadline.
            what = f"{type(error).__name__}: {error}"
            self._fail(Cause(self.node, "channel", what))
            self._report_failures()
            raise

    def _report_failures(self) -> None:
        while self._unreported:
            cause = self._unreported.pop()
            self._broadcast_abort(cause)
            self.on_abort(cause)

    def _on_tick(self, now: float, is_beat: bool) -> None:
        """Do what is due from time to time; with `is_beat`, send heartbeats."""
        for peer in list(self.mailbox.departed):
            self._liveness.forget(peer)
        for peer in self._liveness.lost_peers(now):
            self._liveness.forget(peer)
            what = f"lost: no heartbeat for {self._lost_after:g} s"
            self._fail(Cause(peer, f"seen from {self.node}", what))

    # What a transport implements.

    @abstractmethod
    def _open(self) -> None:
        """Open the sockets; called before the thread starts."""

    @abstractmethod
    def _poll(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for frames, and handle them."""

    @abstractmethod
    def _wake(self) -> None:
        """End `_poll` and every wait of the program for a frame."""

    @abstractmethod
    def _broadcast_abort(self, cause: Cause) -> None:
        """Send a failure to every connected peer."""

    @abstractmethod
    def _undelivered_peers(self) -> set[str]:
        """Return the peers that do not have all that was sent to them."""

    @abstractmethod
    def _request_delivery(self, peer: str) -> None:
        """Ask a peer to accept at once what was sent to it: this node will close."""

    @abstractmethod
    def _close_sockets(self) -> None:
        """Send the last frame to every peer, and close everything."""
