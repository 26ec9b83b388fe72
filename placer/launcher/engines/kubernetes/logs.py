"""Reads the log of a pod while it runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

from placer.errors import RunError
from placer.launcher.child import Child, unnamed_file
from placer.launcher.engines.engine import NodeLines, NodeLog
from placer.launcher.engines.kubernetes.kubectl import (
    Kubectl,
    KubectlError,
    read_error,
)
from placer.launcher.engines.kubernetes.manifests import CONTAINER
from placer.runtime.control.events import read_event
from placer.system.owned_threads import OwnedThreads

_EVENT: Final = b'{"event"'
"""How an event begins, in a log that has other lines, too."""
_STAMP: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)"
)
"""The time of a line, as Kubernetes writes it."""
_RETRY: Final = 1.0
"""Seconds until a log is read again whose connection has ended."""
_CLOSING: Final = 2.0
"""Seconds within which the thread ends, unless something else has the output of a kubectl
that was killed."""
_UNREAD: Final = "it was not read to its end in time"
"""Why a log is read no more that was closed."""


class PodLog:
    """Reads the log of a pod in a thread, from its beginning to its end.

    A connection that ends early is opened again, and nothing is read twice: each line
    has its time.

    Args:
        kubectl: how to reach the cluster.
        node: the node that the pod is.
        pod: the name of the pod.
        report: is called, in the thread, with what was read.
        unread: is called, in the thread, with an error if the log of a pod that runs
            cannot be read; it is tried again.
        ended: is called, in the thread, after the end of the log, with an error if the
            rest could not be read.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        node: str,
        pod: str,
        report: Callable[[NodeLines | NodeLog], None],
        unread: Callable[[str], None],
        ended: Callable[[str], None],
    ) -> None:
        self._kubectl, self._node, self._pod = kubectl, node, pod
        self._report, self._unread, self._ended = report, unread, ended
        self._last = b""  # the time of the last line
        self._same = 0  # the last lines with that time
        self._again = 0  # lines with that time that come again
        self._is_complete = threading.Event()  # the pod writes nothing more
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._threads = OwnedThreads()
        self._threads.begin(self._run, f"placer log of {node}")

    def finish(self) -> None:
        """Say that the pod has ended: its log ends where it is read to its end. After an
        error it is read again, until it is closed."""
        self._is_complete.set()

    def close(self) -> None:
        """Read no more."""
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.kill()
        self._is_complete.set()

    def wait(self) -> None:
        """Wait until a log that was closed is read no more."""
        self._threads.join(_CLOSING)

    def _run(self) -> None:
        try:
            error = self._read_to_end()
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._ended(error)

    def _read_to_end(self) -> str:
        """Read until the end of the log; return why that was not possible, if it was not."""
        last = ""
        while True:
            was_complete = self._is_complete.is_set()
            error = self._read(was_complete)
            if self._closed.is_set():
                return last or error
            if was_complete and "NotFound" in error:
                return ""  # it was deleted, and its log with it
            if was_complete and not error:
                return ""
            if error and not was_complete:
                self._unread(error)
            last = error
            (self._closed if was_complete else self._is_complete).wait(_RETRY)

    def _read(self, is_complete: bool) -> str:
        """Read what comes after the last line, until the connection ends. Return what
        has gone wrong, if anything has."""
        words = ["logs", self._pod, "--container", CONTAINER, "--follow"]
        words.append("--timestamps")
        if self._last:
            words.append(f"--since-time={self._last.decode()}")
        # A full pipe for stderr would block kubectl.
        with unnamed_file() as said:
            with self._lock:
                if self._closed.is_set():
                    return _UNREAD
                try:
                    self._process = process = self._kubectl.start(*words, stderr=said)
                except KubectlError as error:
                    return str(error)
            with process:
                rest, after, self._again = b"", self._last, self._same
                for data in process.read(process.stdout):
                    *lines, rest = (rest + data).split(b"\n")
                    self._pass_on(lines, after)
                process.wait()
            if self._closed.is_set():
                return _UNREAD
            if process.status:
                return read_error(said)
            if rest and is_complete:  # else it may be a part of a line
                self._pass_on([rest], after)
            return ""

    def _pass_on(self, lines: list[bytes], after: bytes) -> None:
        """Report lines that came after a time. Each begins with its time, but for what
        the machine of the pod says about its log."""
        start = _moment(after)
        found: list[tuple[bool, bytes]] = []
        for line in lines:
            stamp, _, text = line.partition(b" ")
            moment = _moment(stamp)
            if moment is None:
                found.append((False, line))
                continue
            if start is not None and moment < start:
                continue
            if moment == start and self._again:
                self._again -= 1
                continue
            self._same = self._same + 1 if stamp == self._last else 1
            self._last = stamp
            found.append((_is_event(self._node, text), text))
        while found:
            is_event = found[0][0]
            count = next(
                (i for i, (kind, _) in enumerate(found) if kind != is_event), len(found)
            )
            texts, found = [text for _, text in found[:count]], found[count:]
            if is_event:
                self._report(NodeLines(self._node, texts))
            else:
                text = b"".join(text + b"\n" for text in texts)
                self._report(NodeLog(self._node, text))


def _is_event(node: str, text: bytes) -> bool:
    """Whether a line is an event, and not one that looks like it: the log also has what
    the model's code prints."""
    if not (text.startswith(_EVENT) and text.endswith(b"}")):
        return False
    try:
        event = read_event(node, text)
    except RunError:
        return False
    name = getattr(event, "node", node)
    return bool(name == node or name.removeprefix(f"{node}.").isdecimal())


def _moment(stamp: bytes) -> tuple[datetime, bytes] | None:
    """Return the time that a line begins with, so that it can be compared; None if it is
    no time.

    >>> _moment(b"2026-11-28T18:00:00.5+02:00") > _moment(b"2026-11-28T16:00:00.45Z")
    True
    """
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    try:
        return datetime.fromisoformat((found[1] + found[3]).decode()), found[2] or b""
    except ValueError:
        return None
