"""Starts the process of a node again: `placer run --restarts N` without a launcher.

The process that a person or an engine has started becomes the guard of the node. It runs the
same command as a child process, and again when that process is killed, or fails in a way that
does not end the run. The child writes notes to a pipe (`placer.runtime.process.guard_notes`).
The guard passes signals on. It ends with the status of the last process, and the child ends
with the guard, also if the guard is killed.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import select
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

from placer.channel.cause import Cause
from placer.channel.keys import VARIABLE
from placer.launcher.child import Child
from placer.launcher.parent import end_with_parent
from placer.launcher.pauses import pause_before, pause_of_outage
from placer.runtime.callbacks.event_queue import write_all
from placer.runtime.control.events import CUT_LINE, Left, write_event
from placer.runtime.control.options import Options
from placer.runtime.process.guard_notes import (
    ATTEMPT,
    FAILED,
    FINISHED,
    JOINED,
    OUTAGE,
    OVER,
    TRAINS,
)
from placer.runtime.process.interpreter import NODE_VARIABLES
from placer.runtime.signals.signals import (
    END_SIGNALS,
    STOP_SIGNAL,
    how_ended,
    shell_status,
    status_of_shell,
)

PASSED_ON: Final = (*END_SIGNALS, STOP_SIGNAL)
"""The signals that a guard passes on to the node."""
GUARD_FD: Final = "--guard-fd"
FINAL_STATUSES: Final = (1, 2, 126, 127)
"""The exit statuses of a guard with which another one would end as well: a failure that ends the
run, wrong arguments or another build, and a Python that is not on the machine."""
_DESCRIPTOR: Final = re.compile("/proc/self/fd/([0-9]+)")
READ_NOTES: Final = 10.0
"""Seconds between two reads of the notes. Signals and the end of the node wake the guard."""


def guard_of(
    node: str,
    options: Options,
    run_id: str,
    events: int | None,
    orders: int | None,
    *,
    leaves: bool,
) -> Guard:
    """Return the guard of a node, for which this process was started.

    Args:
        node: the name of the node's process.
        options: the options of the run.
        run_id: the id of the run; if empty, it gets one.
        events: a descriptor of the node's events.
        orders: a descriptor from which the node reads orders.
        leaves: as in `Guard`.
    """
    key = _DESCRIPTOR.fullmatch(os.environ.get(VARIABLE, ""))
    used = [int(key[1])] if key else []
    if orders is not None:
        used.append(orders)
    command = [sys.executable, *sys.orig_argv[1:]]
    run_id = run_id or secrets.token_hex(8)
    return Guard(
        node,
        options.restarts,
        options.lost_after,
        command,
        run_id,
        events,
        used,
        leaves=leaves,
        longest_pause=options.join_timeout / 2,
    )


def begin_guarded(fd: int) -> None:
    """Begin a process that a guard has started, with the descriptor for its notes. It ends
    with the guard. The signals that the guard passes on stay blocked until the process can
    handle them."""
    end_with_parent()
    notes = select.poll()
    notes.register(fd, 0)  # POLLERR is always reported.
    if notes.poll(0):  # The guard has ended before.
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))


@dataclass(slots=True)
class Guard:
    """The guard of a node.

    Attributes:
        node: the name of the node's process.
        limit: the value of `--restarts`.
        lost_after: the value of `--lost-after`; a process that is frozen for longer is killed.
        command: the command line of the node.
        run_id: the id of the run.
        events: a descriptor of the node's events; None if they are not written.
        inherited: more descriptors that the node uses.
        attempt: the last attempt of the node.
        trains: whether the run has trained.
        signals: the signals so far.
        leaves: whether SIGTERM ends only this guard and its process: the engine then starts
            the node on another machine, and the run goes on.
        longest_pause: the longest pause after an error of a stream, in seconds.
    """

    node: str
    limit: int
    lost_after: float
    command: Sequence[str]
    run_id: str
    events: int | None = None
    inherited: Sequence[int] = ()
    attempt: int = 1
    trains: bool = False
    signals: list[int] = field(default_factory=list)
    leaves: bool = False
    longest_pause: float = math.inf
    _is_leaving: bool = False
    _pid: int = 0

    def run(self) -> NoReturn:
        """Run the node until the run is over for it, and exit with its status."""
        # The node inherits the blocked signals, and unblocks them when it can handle them.
        signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD))
        early = outages = 0
        while True:
            status, notes = self._run_once()
            how = f"{self.node} {how_ended(status)}"
            # A process that has obeyed a signal N may exit with status 128 + N.
            is_asked = -status_of_shell(status) in self.signals
            if FINISHED in notes and status < 0 and not is_asked:
                self._say(f"{how}, after its part of the run was done")
                self._exit(0)
            if FINISHED in notes or OVER in notes or status == 0 or is_asked:
                self._exit(status)
            if self._is_leaving:
                self._say(f"{self.node} leaves this machine, because of SIGTERM")
                self._exit(-signal.SIGTERM)
            if FAILED not in notes:  # it could not report its end itself
                self._report(how)
            early = 0 if JOINED in notes else early + 1
            if early > self.limit:
                self._say(f"{how}; it has ended {early} times before it joined")
                self._exit(status)
            self._say(f"{how}; it is started again")
            # A stream that fails before the node trains has no rows yet.
            outages = outages + 1 if OUTAGE in notes and TRAINS not in notes else 0
            pause = pause_before(early)
            if OUTAGE in notes and outages <= self.limit:
                pause = max(pause, min(self.longest_pause, pause_of_outage(outages)))
            self._pause(pause)

    def _run_once(self) -> tuple[int, set[str]]:
        """Run a process of the node; return its status and its notes."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        notes = b""
        with Child.start(
            [*self.command, *self._arguments(write)],
            {**NODE_VARIABLES, **os.environ},
            stdin=0,
            stdout=1,
            stderr=2,
            pass_fds=(write, *self.inherited),
        ) as child:
            self._pid = child.pid
            os.close(write)
            if self.signals:  # The process that obeyed them has failed.
                child.signal(STOP_SIGNAL)
            frozen_since: float | None = None
            while not child.ends_within(0.0):
                number = self._wait(min(READ_NOTES, self.lost_after / 4))
                if number is not None:
                    child.signal(number)
                notes += _read_all(read)
                now = time.monotonic()
                frozen_since = (frozen_since or now) if child.is_frozen() else None
                if frozen_since is not None and now - frozen_since > self.lost_after:
                    self._say(
                        f"{self.node} is frozen: a signal has stopped its process"
                    )
                    child.kill()
            status = child.wait()
            notes += _read_all(read)
        os.close(read)
        assert status is not None
        lines = {*notes.decode().splitlines()}
        begun = (each.removeprefix(ATTEMPT) for each in lines if ATTEMPT in each)
        self.attempt = max([self.attempt, *map(int, begun)])
        self.trains = self.trains or TRAINS in lines
        return status, lines

    def _arguments(self, fd: int) -> list[str]:
        """Return the arguments that a guard adds to the command line of its node."""
        given = [GUARD_FD, str(fd), "--run-id", self.run_id]
        return [*given, "--attempt", str(self.attempt + 1)] if self.trains else given

    def _wait(self, seconds: float) -> int | None:
        """Wait for a signal to pass on, or the end of a process; return the signal."""
        found = signal.sigtimedwait((*PASSED_ON, signal.SIGCHLD), seconds)
        if found is None or found.si_signo == signal.SIGCHLD:
            self._reap_others()
            return None
        if self.leaves and found.si_signo == signal.SIGTERM:
            self._is_leaving = True
            return signal.SIGKILL
        self.signals.append(found.si_signo)
        return found.si_signo

    def _reap_others(self) -> None:
        """As the first process of a container, reap the processes that have lost their
        parent."""
        with suppress(ChildProcessError):  # There are none.
            while os.getpid() == 1 and (found := os.waitid(os.P_ALL, 0, _ENDED)):
                if found.si_pid == self._pid:
                    return
                os.waitpid(found.si_pid, 0)

    def _pause(self, seconds: float) -> None:
        """Wait before the next start. A signal that ends a run ends the guard."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            number = self._wait(left)
            if self._is_leaving:
                self._exit(-signal.SIGTERM)
            if number in END_SIGNALS:
                self._exit(-number)

    def _report(self, how: str) -> None:
        """Write the event of a node that has ended without it."""
        if self.events is None:
            return
        cause = Cause(self.node, "", how.removeprefix(f"{self.node} "))
        line = write_event(Left(self.node, self.attempt, cause, root=True))
        with suppress(OSError):  # the node warns of events that cannot be written
            write_all(self.events, (CUT_LINE if self._is_cut() else b"") + line)

    def _is_cut(self) -> bool:
        """Whether the last event may be incomplete."""
        assert self.events is not None
        size = os.fstat(self.events).st_size
        if not stat.S_ISREG(os.fstat(self.events).st_mode):
            return True
        return size > 0 and os.pread(self.events, 1, size - 1) != b"\n"

    def _say(self, text: str) -> None:
        with suppress(OSError):
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def _exit(self, status: int) -> NoReturn:
        ended_by = next((n for n in self.signals if n in END_SIGNALS), None)
        if status == 0 and ended_by is not None:
            status = -ended_by  # A later process has stopped the run for this signal.
        sys.stdout.flush()
        os._exit(shell_status(status))


_ENDED: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT


def _read_all(fd: int) -> bytes:
    """Return the data that a pipe has now."""
    data = b""
    with suppress(BlockingIOError):
        while more := os.read(fd, 1 << 16):
            data += more
    return data
