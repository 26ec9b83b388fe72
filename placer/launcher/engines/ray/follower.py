"""Follows the nodes of a job on Ray, and starts those again whose actors are lost.

With `--restarts`, a killed process of a node comes back in its actor without the driver. If the
actor is lost, Ray starts another one in the same bundle of the placement group, perhaps on another
machine. The driver then starts the node there, and the other nodes learn its new address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
import ray.exceptions

from placer.channel.cause import Cause
from placer.launcher.engines.attempts import last_attempt_of, lost_line
from placer.launcher.engines.ray.cluster import Head, explain
from placer.launcher.engines.ray.files import RayJobDescription
from placer.launcher.engines.ray.messages import Ended, Lines, Log, Message, Note
from placer.launcher.engines.ray.node import NodeOutput
from placer.launcher.engines.ray.nodes import RayNodes
from placer.launcher.engines.said import in_one_line
from placer.launcher.pauses import pause_before
from placer.runtime.control.events import (
    CONNECTING,
    IMPORTING,
    STATE_LINE,
    State,
    is_cut,
    read_event,
)
from placer.runtime.signals.signals import how_ended, status_of_shell

LOST_ACTOR: Final = "lost its actor in Ray"
POLL: Final = 1.0
"""Seconds between two checks for time limits."""
SILENT: Final = 60.0
"""Seconds without an answer after which an actor counts as lost. A working actor
answers every few seconds."""
STOPPED: Final = 10.0
"""If two checks are this many seconds apart, this process itself was stopped."""
RETRY: Final = 0.25
"""Seconds between two requests to an actor that Ray starts again."""
QUIET: Final = 5.0
"""Seconds after which the user is told that the job waits for an actor."""


@dataclass(slots=True)
class _Followed:
    """A node that has not ended.

    Attributes:
        asked: the time of the last request for output.
        losses: how often in a row its actor was lost before its process had joined the
            others.
        has_joined: whether the process has joined the others since its actor was lost.
        process: the number of its process, as far as it is known.
        why: why the actor was lost, until its node is started again.
        since: the time of this loss.
        due: the time of the next request to the actor that takes its place, if any.
        is_told: whether the user was told that the job waits for it.
    """

    asked: float
    losses: int = 0
    has_joined: bool = False
    process: int = 0
    why: str = ""
    since: float = 0.0
    due: float | None = None
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an actor: its node, and the functions for its answer and its error."""

    node: str
    then: Callable[[str, Any], None]
    otherwise: Callable[[str, ray.exceptions.RayError], None]


class Follower:
    """Follows the nodes of a job, and passes their messages to `tell`."""

    def __init__(
        self,
        job: RayJobDescription,
        nodes: RayNodes,
        head: Head,
        tell: Callable[[Message], None],
    ) -> None:
        self._job, self._nodes, self._head, self._tell = job, nodes, head, tell
        self._left: dict[str, _Followed] = {}
        self._calls: dict[Any, _Call] = {}
        self._ends: list[Ended] = []
        self._is_over = not job.restarts
        self._attempt = 1

    def follow(self) -> Ended:
        """Follow the nodes, whose processes have started, until all have ended; return the
        last end."""
        looked = time.monotonic()
        for node in self._nodes.actors:
            self._left[node] = _Followed(looked)
            self._read(node)
        while True:
            ready = self._wait()
            now = time.monotonic()
            if now - looked > STOPPED:
                for followed in self._left.values():
                    followed.asked = now
            looked = now
            for ref in ready:
                self._take(ref)
            for node in [*self._left]:
                self._check_times(node, now)
            last = self._ends.pop() if not self._left else None
            for end in self._ends:
                self._tell(end)
            if last is not None:
                return last
            self._ends.clear()
            if news := self._head.look():
                self._tell(Note(news))

    def _wait(self) -> Sequence[Any]:
        """Wait a short time for calls, and return those that have an answer."""
        due = [each.due for each in self._left.values() if each.due is not None]
        pause = min([POLL, *(max(0.0, at - time.monotonic()) for at in due)])
        if not self._calls:
            time.sleep(pause)
            return []
        ready: Sequence[Any] = ray.wait([*self._calls], timeout=pause)[0]
        return ready

    def _take(self, ref: Any) -> None:
        if (call := self._calls.pop(ref, None)) is None:
            return  # its node has ended meanwhile
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayError as error:
            call.otherwise(call.node, error)
        else:
            call.then(call.node, answer)

    def _check_times(self, node: str, now: float) -> None:
        followed = self._left[node]
        if followed.due is not None and now >= followed.due:
            followed.due = None
            call = _Call(node, self._place, self._place_again)
            self._calls[self._nodes.where(node)] = call
        if followed.why:
            self._check_wait(node, followed, now - followed.since)
        elif now - followed.asked > SILENT:
            if not self._is_over:
                self._nodes.restart(node)
            self._lose(node, f"its actor in Ray has not answered for {SILENT:g} s")

    # The output of a node.

    def _read(self, node: str) -> None:
        call = _Call(node, self._pass_on, self._lose_actor)
        self._calls[self._nodes.actors[node].read.remote()] = call

    def _pass_on(self, node: str, output: NodeOutput) -> None:
        """Pass on the output of a node, and ask for more if its process runs."""
        followed = self._left[node]
        followed.asked = time.monotonic()
        if output.lines:
            self._tell(Lines(node, output.lines))
        if output.log:
            self._tell(Log(node, output.log))
        if self._job.restarts:
            self._note(node, output.lines)
        if output.status is None:
            self._read(node)
        elif not self._job.restarts:
            self._end(node, output.status, "")
        elif output.status < 0:
            self._lose(node, f"its guard {how_ended(output.status)}")
        else:
            self._end(node, status_of_shell(output.status), "")

    def _note(self, node: str, lines: Sequence[bytes]) -> None:
        """Note the attempt, and how the process of a node goes on."""
        self._attempt = last_attempt_of(node, lines, self._attempt)
        followed = self._left[node]
        for line in lines:
            if not line.startswith(STATE_LINE) or is_cut(line):
                continue
            state = read_event(node, line)
            assert isinstance(state, State)
            if state.process != followed.process:
                # The guard starts each process with the first addresses.
                self._nodes.tell_moves(node)
            followed.process = state.process
            followed.has_joined |= state.state not in (IMPORTING, CONNECTING)

    def _end(self, node: str, status: int | None, why: str) -> None:
        """Note the end of a node, which ends the run."""
        self._ends.append(Ended(node, status, why, self._nodes.host(node)))
        self._is_over = True
        del self._left[node]
        self._drop_calls(node)

    def _drop_calls(self, node: str) -> None:
        self._calls = {k: call for k, call in self._calls.items() if call.node != node}

    # Lost actors.

    def _lose_actor(self, node: str, error: ray.exceptions.RayError) -> None:
        self._lose(node, self._why(error))

    def _lose(self, node: str, why: str) -> None:
        """Wait for another actor of a node, or end the node."""
        followed = self._left[node]
        followed.losses = 1 if followed.has_joined else followed.losses + 1
        followed.has_joined = False
        if self._is_over:
            self._end(node, None, why)
        elif followed.losses > self._job.restarts:
            self._end(node, None, f"{why}, {followed.losses} times in a row")
        else:
            what = why if why == LOST_ACTOR else f"was lost: {why}"
            line = lost_line(node, self._attempt, Cause(node, "", what))
            self._tell(Lines(node, [line]))
            self._drop_calls(node)
            followed.why, followed.since = why, time.monotonic()
            followed.due = followed.since + pause_before(followed.losses)

    def _check_wait(self, node: str, followed: _Followed, seconds: float) -> None:
        """End a node whose actor does not come back."""
        limit = self._job.join_timeout
        if self._is_over:
            self._end(node, None, followed.why)
        elif seconds > limit:
            late = f"Ray has not started it again within {limit:g} s"
            self._end(node, None, f"{followed.why}; {late}")
        elif seconds > QUIET and not followed.is_told:
            followed.is_told = True
            text = (
                f"waits at most {limit:g} s for Ray to start the actor of {node} again"
            )
            self._tell(Note(text))

    def _place(self, node: str, address: str) -> None:
        """Start the process of a node in the actor that takes the place of a lost one."""
        nodes = self._nodes
        if address != nodes.addresses[node]:
            host, nodes.addresses[node] = nodes.host(node), address
            nodes.moved.add(node)
            for other in self._left:
                nodes.tell_moves(other)
            if nodes.host(node) != host:
                self._tell(Note(f"{node} moves from {host} to {nodes.host(node)}"))
        call = _Call(node, self._resume, self._refuse)
        self._calls[self._nodes.run(node)] = call

    def _place_again(self, node: str, error: ray.exceptions.RayError) -> None:
        """Ask the actor again while Ray starts it. End the node if Ray does not."""
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            self._left[node].due = time.monotonic() + RETRY
        else:
            self._end(node, None, f"{self._left[node].why}; then {self._why(error)}")

    def _resume(self, node: str, _: None) -> None:
        """Follow the process of a node that was started again."""
        followed = self._left[node]
        followed.why, followed.is_told, followed.asked = "", False, time.monotonic()
        self._read(node)

    def _refuse(self, node: str, error: ray.exceptions.RayError) -> None:
        """Handle a process that could not be started: by an error, or because the actor was
        lost."""
        if isinstance(error, ray.exceptions.RayTaskError):
            self._end(node, None, f"{self._left[node].why}; then {error.cause}")
        else:
            self._lose(node, self._why(error))

    def _why(self, error: ray.exceptions.RayError) -> str:
        is_unavailable = isinstance(error, ray.exceptions.ActorUnavailableError)
        if self._job.restarts and is_unavailable:
            # Ray's text only says that it cannot reach the actor for a time.
            return LOST_ACTOR
        return f"Ray says: {in_one_line(explain(error, self._head))}"
