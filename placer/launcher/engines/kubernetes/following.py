"""Follows a job: lists its pods every few seconds, and reads their logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Full, Queue
from typing import Final, TypeAlias

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.launcher.engines.attempts import last_attempt_of, lost_line
from placer.launcher.engines.engine import (
    JobEvent,
    JobNote,
    NodeEnded,
    NodeLines,
    NodeLog,
)
from placer.launcher.engines.kubernetes.job import KubernetesJob
from placer.launcher.engines.kubernetes.kubectl import FORBIDDEN, KubectlError
from placer.launcher.engines.kubernetes.logs import PodLog
from placer.launcher.engines.kubernetes.pods import End, Pod, Pods, joined
from placer.launcher.engines.said import in_one_line
from placer.launcher.guard import FINAL_STATUSES
from placer.runtime.control.differing import list_nodes
from placer.runtime.signals.signals import how_ended
from placer.system.owned_threads import OwnedThreads

POLL: Final = 2.0
"""Seconds between two requests for the pods."""
PATIENCE: Final = 5.0
"""Seconds that a pod must wait before the user is told."""
SLOW: Final = 60.0
"""Seconds after which the user is told of pods that are missing or do not start."""
STUCK: Final = 600.0
"""Seconds after which a scheduled pod that has not started counts as lost. For example,
its image does not exist."""
REPLACED: Final = 15.0
"""Seconds in which a deleted pod must be replaced by another one."""
OVERDUE: Final = 30.0
"""Seconds past its deadline after which a pod that is being deleted counts as lost."""
UNREAD: Final = 30.0
"""Seconds to read the rest of the log of an ended pod."""
CLOSED: Final = 2.0
"""More seconds in which a closed log can report why it could not be read."""
MOST_WAITING: Final = 256
"""The largest number of items read from logs that may wait to be handled."""
CANCELLED: Final = 60.0
"""Seconds to follow a job after it was cancelled."""
SILENT: Final = 10.0
"""Seconds without an answer of the cluster before the user is told."""
GIVEN_UP: Final = 600.0
"""Seconds without an answer of the cluster after which a job is given up."""
_LOST_MACHINE: Final = (
    "{node} is on the machine {host}, which does not answer: Kubernetes makes the pod again"
    " when the machine is back, or was removed (kubectl delete node {host})"
)


@dataclass(frozen=True, slots=True)
class _LogEnded:
    """The end of a pod's log; `error` is the reason if the rest could not be read."""

    node: str
    uid: str
    error: str


@dataclass(frozen=True, slots=True)
class _LogUnread:
    """The log of a running pod cannot be read."""

    node: str
    error: str


_Item: TypeAlias = JobEvent | Pods | Exception | _LogEnded | _LogUnread


def watch_job(job: KubernetesJob) -> Iterator[JobEvent]:
    """Yield the events of a job; see `Engine.watch`. When the run has ended, the job is
    deleted before its last events are yielded."""
    items: Queue[_Item] = Queue(MOST_WAITING)
    closing = threading.Event()

    def put(item: _Item) -> None:
        while not closing.is_set():
            with suppress(Full):
                items.put(item, timeout=1.0)
                return

    def poll() -> None:
        while not closing.is_set():
            try:
                put(job.pods())
            except Exception as error:
                put(error)
            closing.wait(POLL)

    threads = OwnedThreads()
    threads.begin(poll, "placer pods")
    following = _Following(job, put)
    try:
        while not following.is_over:
            events = [*following.take(items.get())]
            if following.is_over and not job.keep:
                if job.replaced.is_set():
                    yield JobNote(
                        f"{job.title} was replaced by another job, which is kept"
                    )
                try:
                    job.delete()
                except KubectlError as error:
                    yield JobNote(f"{error}\nthis deletes it: {job.cancel_command}")
            yield from events
    finally:
        closing.set()
        following.close()
        threads.join(CLOSED)


@dataclass(slots=True)
class _Following:
    """The state of a followed job.

    Attributes:
        put: a function that receives what is read from logs.
        is_over: True if the job has ended and all logs were read.
    """

    job: KubernetesJob
    put: Callable[[_Item], None]
    is_over: bool = False
    _pods: dict[str, Pod] = field(default_factory=dict)  # the newest pod of each node
    _logs: dict[str, PodLog] = field(default_factory=dict)  # by uid of the pod
    _read: set[str] = field(default_factory=set)  # the uids of pods whose log has ended
    _ends: dict[str, NodeEnded] = field(default_factory=dict)  # by node
    _told: set[str] = field(default_factory=set)  # the nodes whose end was reported
    # By node: the end of a pod that is made again, until its log is read.
    _losses: dict[str, End] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)  # the uids of these pods
    _attempt: int = 1  # the last attempt that a node has reported
    _since: dict[tuple[str, ...], float] = field(default_factory=dict)
    _noted: set[tuple[str, ...]] = field(default_factory=set)
    _groups: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.job.groups
        self._groups = {node: group.name for group in groups for node in group.nodes}

    def take(self, item: _Item) -> Iterator[JobEvent]:
        """Handle one item, and yield the resulting events."""
        if isinstance(item, KubectlError):
            yield from self._unanswered(item)
        elif isinstance(item, Exception):
            raise item
        elif isinstance(item, Pods):
            if self._forget(("cluster",)):
                yield JobNote("the cluster answers again")
            yield from self._compare(item)
        elif isinstance(item, _LogEnded):
            self._read.add(item.uid)
            if item.error:
                yield JobNote(f"the log of {item.node} is incomplete: {item.error}")
        elif isinstance(item, _LogUnread):
            yield from self._unread(item)
        else:
            if isinstance(item, NodeLines | NodeLog):
                self._forget(("unread", item.node))
            if isinstance(item, NodeLines) and self.job.restarts:
                self._attempt = last_attempt_of(item.node, item.lines, self._attempt)
            yield item
        for node in [n for n in self._losses if self._is_read(n)]:
            yield self._left(node, self._losses.pop(node))
        for node, end in self._ends.items():
            if node in self._told:
                continue
            if not self._is_read(node):
                break  # Report the ends of nodes in their order.
            self._told.add(node)
            yield end
        self.is_over = len(self._told) == len(self.job.nodes) or (
            self.job.cancelling.is_set() and self._lasts(("cancelled",), CANCELLED)
        )

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        for log in self._logs.values():
            log.wait()

    def _is_read(self, node: str) -> bool:
        pod = self._pods.get(node)
        if pod is None or pod.uid not in self._logs or pod.uid in self._read:
            return True
        if self._lasts(("log", pod.uid), UNREAD):
            self._logs[pod.uid].close()
        if self._lasts(("log", pod.uid), UNREAD + CLOSED):
            self._read.add(pod.uid)
        return pod.uid in self._read

    def _unanswered(self, error: KubectlError) -> Iterator[JobEvent]:
        if error.is_forbidden or self._lasts(("cluster",), GIVEN_UP):
            raise self._lost(error.message)
        if self._is_news(("cluster",), SILENT):
            yield JobNote(f"{in_one_line(error.message)}; trying again")

    def _unread(self, item: _LogUnread) -> Iterator[JobEvent]:
        if FORBIDDEN in item.error:
            raise self._lost(item.error)
        if self._is_news(("unread", item.node), SILENT):
            yield JobNote(
                f"the log of {item.node} cannot be read: {item.error}; trying again"
            )

    def _lost(self, why: str) -> RunError:
        return RunError(
            f"{self.job.title} can no longer be followed: {why}",
            hint=f"the job keeps running; end it with: {self.job.cancel_command}",
        )

    def _compare(self, found: Pods) -> Iterator[JobEvent]:
        """Compare the pods with their last known state, and yield the resulting events."""
        waiting: dict[tuple[str, str], list[str]] = {}
        pods = {node: self._newest(node, found) for node in self.job.nodes}
        for node, pod in sorted(pods.items(), key=lambda each: _end_time(each[1])):
            if node in self._ends or node in self._losses:
                continue
            before = self._pods.get(node)
            if pod is None:
                self._miss(node, before, found)
                continue
            self._forget(("gone", node))
            if before is not None and pod.uid != before.uid:
                if self.job.restarts and before.uid not in self._gone:
                    end = found.earlier.get(before.uid, before).end
                    self._handle_end(before, end or _deleted(before), found)
                    continue
                yield JobNote(f"{node} starts again in another pod")
                self._finish_log(before)
            self._follow(pod)
            if pod.end is not None:
                self._handle_end(pod, pod.end, found)
            elif pod.deleted is not None:
                if self._lasts(("deleted", pod.uid), pod.deleted + OVERDUE):
                    end = End(None, "its machine does not answer")
                    again = self._handle_end(pod, end, found)
                    if again and self._is_news(("machine", pod.uid), 0.0):
                        yield JobNote(_LOST_MACHINE.format(node=node, host=pod.host))
            elif pod.waiting is not None and self._is_stuck(pod):
                self._end(node, End(None, joined(*pod.waiting)))
            elif pod.waiting is not None:
                waiting.setdefault(pod.waiting, []).append(node)
            elif not pod.has_log:
                waiting.setdefault(("starting", ""), []).append(node)
        yield from self._notes(waiting, found)

    def _newest(self, node: str, found: Pods) -> Pod | None:
        """Return the newest pod of a node; None if it was deleted, but earlier ones were not."""
        pod, before = found.pods.get(node), self._pods.get(node)
        if pod is None or before is None or pod.uid == before.uid:
            return pod
        return None if pod.uid in self._gone else pod

    def _is_stuck(self, pod: Pod) -> bool:
        """Return True if a scheduled pod has not started for a long time."""
        return bool(pod.host) and self._lasts(("stuck", pod.uid), STUCK)

    def _follow(self, pod: Pod) -> None:
        self._pods[pod.node] = pod
        if pod.has_log and pod.uid not in self._logs:
            self._logs[pod.uid] = PodLog(
                self.job.kubectl,
                pod.node,
                pod.name,
                self.put,
                lambda error: self.put(_LogUnread(pod.node, error)),
                lambda error: self.put(_LogEnded(pod.node, pod.uid, error)),
            )

    def _miss(self, node: str, before: Pod | None, found: Pods) -> None:
        success = found.over.get(self._groups[node])
        if success is not None:  # The job has ended and deletes the remaining pods.
            result = "is done" if success else "had failed"
            why = f"its pod was deleted because the job {result}"
            self._end(node, End(0 if success else None, why))
        elif not found.is_there:
            # Unless this launcher deleted the job, the list may be older than the job.
            wait = 0.0 if self.job.cancelled.is_set() else POLL
            if self._lasts(("gone", node), wait):
                self._end(node, End(None, "its job was deleted"))
        elif before is not None and self.job.restarts:
            self._handle_end(before, _deleted(before), found)
        elif before is not None:
            # Another pod may replace it, unless Kubernetes has ended it.
            wait = 0.0 if before.disrupted else REPLACED
            if self._lasts(("gone", node), wait):
                self._end(node, _deleted(before))

    def _end(self, node: str, end: End) -> None:
        pod = self._pods.get(node)
        host = "" if pod is None else pod.host
        why = end.why
        if pod is not None and pod.uid in self._gone:
            why = joined(why, "Kubernetes does not make the pod again")
        self._ends[node] = NodeEnded(node, end.status, why, host)
        if pod is not None:
            self._finish_log(pod)

    def _finish_log(self, pod: Pod) -> None:
        if pod.uid in self._logs:
            self._logs[pod.uid].finish()
            self._lasts(("log", pod.uid), UNREAD)  # start the timer

    # Pods that are made again.

    def _is_made_again(self, node: str, status: int | None, found: Pods) -> bool:
        """Whether the Job of a node makes its pod again after an end with this status."""
        is_final = status is not None and status in (0, *FINAL_STATUSES)
        is_ending = self.job.cancelling.is_set() or self._groups[node] in found.over
        return self.job.restarts and found.is_there and not (is_final or is_ending)

    def _handle_end(self, pod: Pod, end: End, found: Pods) -> bool:
        """Note the end of a pod, once; return whether its Job makes it again."""
        if not self._is_made_again(pod.node, end.status, found):
            self._end(pod.node, end)
            return False
        if pod.uid not in self._gone:
            self._gone.add(pod.uid)
            self._losses[pod.node] = end
            self._finish_log(pod)
        return True

    def _left(self, node: str, end: End) -> NodeLines:
        """Return the event that the process of a node has ended and is started again."""
        how = "was lost" if end.status is None else how_ended(end.status)
        what = f"{how} ({end.why})" if end.why else how
        line = lost_line(node, self._attempt, Cause(node, "", what))
        return NodeLines(node, [line])

    def _notes(
        self, waiting: dict[tuple[str, str], list[str]], found: Pods
    ) -> Iterator[JobEvent]:
        """Yield the reason why pods wait, once for each reason that persists."""
        here = {node for node, pod in self._pods.items() if pod.uid not in self._gone}
        missing = [n for n in self.job.nodes if n not in {*self._ends, *here}]
        if missing and found.suspended:
            if self._is_news(("suspended",), PATIENCE):
                yield JobNote(f"{self.job.title} is suspended, for example by a queue")
        elif missing and self._is_news(("missing",), SLOW):
            yield JobNote(
                f"waits for pods of {list_nodes(missing)}: {self._warning(missing)}"
            )
        for (reason, message), nodes in waiting.items():
            patience = SLOW if reason == "starting" else PATIENCE
            new = [n for n in nodes if self._is_news(("wait", n, reason), patience)]
            if not new:
                continue
            why = joined(reason, message)
            if reason == "starting":
                why = f"starting for {SLOW:.0f} s: {self._warning(new)}"
            yield JobNote(f"{list_nodes(new)}: {why}")

    def _warning(self, nodes: Sequence[str]) -> str:
        """Return the cluster's last warning about nodes, or a command that may show one."""
        warnings = self.job.warnings()
        names = [self._pods[node].name for node in nodes if node in self._pods]
        made_by = self.job.identity.nodes()
        names += [job for (job, _), node in made_by.items() if node in nodes]
        names += self.job.identity.names
        told = (warnings[name] for name in names if name in warnings)
        return next(told, f"`{self.job.events_command}` may say why")

    def _lasts(self, what: tuple[str, ...], seconds: float) -> bool:
        """Return True if a condition has held for some seconds since the first call."""
        now = time.monotonic()
        return now - self._since.setdefault(what, now) >= seconds

    def _is_news(self, what: tuple[str, ...], seconds: float) -> bool:
        """Return True once when a condition has held for some seconds."""
        if what in self._noted or not self._lasts(what, seconds):
            return False
        self._noted.add(what)
        return True

    def _forget(self, what: tuple[str, ...]) -> bool:
        """Reset a condition that no longer holds; return True if it was reported."""
        self._since.pop(what, None)
        was_noted = what in self._noted
        self._noted.discard(what)
        return was_noted


def _deleted(pod: Pod) -> End:
    """Return the end of a pod that does not exist any more."""
    why = f" ({pod.disrupted})" if pod.disrupted else ""
    return End(None, f"its pod was deleted{why}")


def _end_time(pod: Pod | None) -> str:
    """Return the time when the container of a pod ended. Running pods sort last."""
    return "~" if pod is None or pod.end is None else pod.end.time
