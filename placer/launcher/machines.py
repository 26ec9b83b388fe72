"""The machines of a run over ssh with `--restarts`: the machine of each node, and the spares.

A process that has ended is started again on its machine. If ssh to the machine then fails, the
machine is lost. All its nodes move to the first unused spare machine, and keep their ports.
Without a spare, ssh is tried again until `--join-timeout` has passed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from placer.channel.endpoint import parse_endpoint, show_endpoint
from placer.launcher.node_process import SSH_FAILED, NodeProcess
from placer.launcher.pauses import pause_before
from placer.launcher.spares import SpareChecks
from placer.launcher.watched_node import WatchedNode
from placer.system.files.last_line import last_line

CONNECT_TIMEOUT: Final = 30
"""Seconds in which a machine must answer ssh."""
RECENT: Final = 3.0
"""Seconds since the last event of a node in which its machine counts as reached."""
_SILENT: Final = "not responding."
"""The end of the message of ssh when a machine has been silent for `--lost-after`."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """How the run reacts to the end of an ssh process.

    Attributes:
        pause: seconds until the node is started again.
        is_failure: whether the node has failed. Otherwise only ssh has, or the launcher has
            ended it.
        warning: a message for the user, if any.
        moved: the new addresses of the nodes that move to another machine.
        ends_run: whether the run ends.
        why: a text to add to the failure that ends the run, if any.
    """

    pause: float = 0.0
    is_failure: bool = False
    warning: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)
    ends_run: bool = False
    why: str = ""


@dataclass(slots=True)
class Machines:
    """The machine of each node, and the spare machines that are not used yet.

    Attributes:
        addresses: the address of each node.
        spares: the hosts of the unused spare machines.
        join_timeout: the value of `--join-timeout`.
        checks: the running checks of the spare machines.
    """

    addresses: dict[str, str]
    spares: list[str]
    join_timeout: float
    checks: SpareChecks
    _failed_since: dict[str, float] = field(default_factory=dict)
    """The time at which each machine has lost a node."""
    _tries: Counter[str] = field(default_factory=Counter)
    """How often ssh to each machine has failed since then."""
    _held: Callable[[], None] | None = None
    """Sends the build to the control node."""

    def host_of(self, node: str) -> str:
        """Return the host of a node."""
        return parse_endpoint(node, self.addresses[node])[0]

    def connect_timeout(self, node: str) -> int:
        """Return the seconds in which the machine of a node must answer ssh."""
        since = self._failed_since.get(self.host_of(node))
        if since is None:
            return CONNECT_TIMEOUT
        rest = since + self.join_timeout - time.monotonic()
        return max(1, min(CONNECT_TIMEOUT, int(rest)))

    def hold(self, child: NodeProcess, delivery: bytes) -> None:
        """Send the build to the control node once the spare machines have been checked. So no
        step is done before."""
        self._held = partial(child.deliver, delivery)

    def news(self) -> Iterator[tuple[str, bool]]:
        """Yield new messages about the spare machines, and whether each ends the run."""
        for _, text, is_unusable in self.checks.news():
            if is_unusable:
                self._held = None  # the run ends
            yield text, is_unusable
        if self.checks.is_done and self._held is not None:
            self._held()
            self._held = None

    def react(
        self,
        child: WatchedNode,
        heard: Mapping[str, float],
        *,
        has_trained: bool,
        since: float | None = None,
    ) -> Reaction | None:
        """Decide how the run reacts to the end of the ssh process of a node.

        Args:
            child: the process.
            heard: the time of the last event of each node.
            has_trained: whether the run has reached its first step.
            since: the time of the failure from which the run recovers, if any.

        Returns:
            The reaction, or None if the process is started again like one of this machine.
        """
        now, host = time.monotonic(), self.host_of(child.node)
        if child.host != host:  # it has moved, and the launcher has ended its ssh
            return Reaction()
        is_reached = any(
            now - at < RECENT and self.host_of(node) == host and node != child.node
            for node, at in heard.items()
        )
        if child.exit_status != SSH_FAILED or child.has_spoken:
            self._failed_since[host] = now if since is None else since
            del self._tries[host]
            was_silent = child.exit_status == SSH_FAILED and _is_silence(child)
            if was_silent and self.spares and not is_reached:
                return self._move(host, "", is_failure=True)
            return None
        why = last_line(child.log) or "no reason was given"
        if self.spares and not (is_reached and has_trained):
            return self._move(host, f": ssh failed: {why}")
        if not has_trained:
            return Reaction(ends_run=True)
        return self._try_again(host, why)

    def _move(self, host: str, why: str, *, is_failure: bool = False) -> Reaction:
        """Move all nodes of a lost machine to the first spare machine."""
        spare = self.spares.pop(0)
        moved = {}
        for node, address in self.addresses.items():
            where, port = parse_endpoint(node, address)
            if where == host:
                moved[node] = show_endpoint((spare, port))
        self.addresses |= moved
        move = "move" if len(moved) > 1 else "moves"
        text = f"{_and(list(moved))} {move} from {host} to the spare {spare}{why}"
        return Reaction(is_failure=is_failure, warning=text, moved=moved)

    def _try_again(self, host: str, why: str) -> Reaction:
        """Try ssh to a machine again after a pause, unless `--join-timeout` has passed."""
        now = time.monotonic()
        until = self._failed_since.setdefault(host, now) + self.join_timeout
        if now >= until:
            text = f"\n  {host} has not come back within {self.join_timeout:g} s"
            return Reaction(ends_run=True, why=f"{text} (--join-timeout)")
        self._tries[host] += 1
        tries = self._tries[host]
        warning = (
            "" if tries > 1 else f"ssh to {host} failed, and is tried again: {why}"
        )
        pause = min(pause_before(tries + 1), until - now)
        return Reaction(pause, warning=warning)


def _is_silence(child: WatchedNode) -> bool:
    """Whether ssh has ended because the machine has been silent for `--lost-after`."""
    return last_line(child.log).endswith(_SILENT)


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
