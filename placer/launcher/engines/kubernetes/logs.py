"""Reads the log of a pod while the pod runs."""

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
"""The beginning of an event. A log also contains other lines."""
_STAMP: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)"
)
"""The time of a line, in the format of Kubernetes."""
_RETRY: Final = 1.0
"""Seconds until a log is read again after its connection has ended."""
_CLOSING: Final = 2.0
"""Seconds in which the thread ends, unless another process holds the output of a killed
kubectl."""
_UNREAD: Final = "its end was not read in time"
"""The reason why a closed log was not read to its end."""


class PodLog:
    """Reads the log of a pod in a thread, from its beginning to its end.

    If a connection ends early, it is opened again. The times of the lines show which ones
    were already read.

    The thread calls the functions in the arguments.

    Args:
        kubectl: runs kubectl for the cluster.
        node: the node of the pod.
        pod: the name of the pod.
        report: receives new lines and events.
        unread: receives an error if the log of a running pod cannot be read. The thread
            then tries again.
        ended: called at the end of the log, with an error if the rest could not be read.
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
        self._same = 0  # the number of lines read with the time `_last`
        self._again = 0  # the number of lines to skip after a reconnection
        self._is_complete = threading.Event()  # set when the pod can write nothing more
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._threads = OwnedThreads()
        self._threads.begin(self._run, f"placer log of {node}")

    def finish(self) -> None:
        """Declare that the pod has ended, so the log is complete once it is read to its
        end. After an error, the log is read again until `close` is called."""
        self._is_complete.set()

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.kill()
        self._is_complete.set()

    def wait(self) -> None:
        """Wait until a closed log is no longer read."""
        self._threads.join(_CLOSING)

    def _run(self) -> None:
        try:
            error = self._read_to_end()
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._ended(error)

    def _read_to_end(self) -> str:
        """Read to the end of the log; return the reason if that was not possible, or ""."""
        last = ""
        while True:
            was_complete = self._is_complete.is_set()
            error = self._read(was_complete)
            if self._closed.is_set():
                return last or error
            if was_complete and "NotFound" in error:
                return ""  # The pod was deleted together with its log.
            if was_complete and not error:
                return ""
            if error and not was_complete:
                self._unread(error)
            last = error
            (self._closed if was_complete else self._is_complete).wait(_RETRY)

    def _read(self, is_complete: bool) -> str:
        """Read after the last line until the connection ends; return an error, or ""."""
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
            if rest and is_complete:
                # Without the end of the log, the rest may be part of a line.
                self._pass_on([rest], after)
            return ""

    def _pass_on(self, lines: list[bytes], after: bytes) -> None:
        """Report the lines after a time; most lines begin with their time."""
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
    """Return True if a line is an event, and not similar output of the model's code."""
    if not (text.startswith(_EVENT) and text.endswith(b"}")):
        return False
    try:
        event = read_event(node, text)
    except RunError:
        return False
    name = getattr(event, "node", node)
    return bool(name == node or name.removeprefix(f"{node}.").isdecimal())


def _moment(stamp: bytes) -> tuple[datetime, bytes] | None:
    """Return the time at the beginning of a line, for comparisons; None without a time.

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
