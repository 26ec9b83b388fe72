"""Clusters and commands that do not do what they should; `kubectl` is a script here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Full, Queue, SimpleQueue
from typing import Any

import pytest
from support.free_addresses import eventually
from support.kubernetes.requests import needs_of

from placer.errors import RunError
from placer.launcher.engines import kubernetes
from placer.launcher.engines.engine import (
    JobEvent,
    JobNote,
    NodeEnded,
    NodeLines,
    NodeLog,
)
from placer.launcher.engines.kubernetes import following, kubectl, logs
from placer.launcher.engines.kubernetes.groups import group_nodes
from placer.launcher.engines.kubernetes.job import KubernetesJob
from placer.launcher.engines.kubernetes.kubectl import Kubectl, KubectlError
from placer.launcher.engines.kubernetes.pods import Identity
from placer.runtime.control.events import Left, Start, read_event, write_event

CREATED = "2026-11-28T18:00:00Z"
FORBIDDEN = (
    'Error from server (Forbidden): pods "digits-ps-0-0-abcde" is forbidden: User "ada"'
    ' cannot get resource "pods/log"'
)
OPEN = "setsid sh -c 'until [ -e closed ]; do sleep 0.02; done' & wait"
"""Starts what has the output, too, and is not in the group of processes."""
EVENT = b'{"event":"warning","message":"a"}'


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL", 0.02)
    monkeypatch.setattr(logs, "_RETRY", 0.02)
    monkeypatch.setattr(logs, "_CLOSING", 0.1)
    monkeypatch.setattr(following, "CLOSED", 0.1)


def job_with(
    tmp_path: Path,
    cases: str,
    *,
    uid: str = "uid-1",
    is_jobset: bool = True,
    nodes: Sequence[str] = ("ps:0",),
    restarts: bool = False,
) -> KubernetesJob:
    """Return a job, by default of one server, whose kubectl is a script: cases of its
    words."""
    path = tmp_path / "kubectl"
    path.write_text(f'#!/bin/sh\ncd {tmp_path}\ncase "$*" in\n{cases}\nesac\n')
    path.chmod(0o755)
    groups = group_nodes(needs_of(nodes))
    identity = Identity("digits", groups, is_jobset, {uid}, CREATED)
    kubectl = Kubectl(str(path), None, None)
    return KubernetesJob(kubectl, identity, True, False, restarts)


def jobset(uid: str = "uid-1", **metadata: Any) -> dict[str, Any]:
    metadata = {"creationTimestamp": CREATED, **metadata}
    return {"kind": "JobSet", "metadata": {"name": "digits", "uid": uid, **metadata}}


def pod(status: dict[str, Any], uid: str = "a", **metadata: Any) -> dict[str, Any]:
    owner = {"kind": "Job", "name": "digits-ps-0", "uid": "job"}
    whole = {
        "name": "digits-ps-0-0-abcde",
        "uid": uid,
        "creationTimestamp": CREATED,
        "ownerReferences": [owner],
        **metadata,
    }
    return {"kind": "Pod", "metadata": whole, "status": status}


def running(name: str = "node") -> dict[str, Any]:
    status = {"name": name, "state": {"running": {}}}
    return {"phase": "Running", "containerStatuses": [status]}


def ended(code: int, name: str = "node") -> dict[str, Any]:
    status = {"name": name, "state": {"terminated": {"exitCode": code}}}
    return {"phase": "Failed", "containerStatuses": [status]}


def show(tmp_path: Path, *items: dict[str, Any]) -> None:
    """Let the script have these objects, in the file `pods`."""
    new = tmp_path / "new"
    new.write_text(json.dumps({"items": items}))
    new.rename(tmp_path / "pods")


def pods_of(job: KubernetesJob, tmp_path: Path, *items: dict[str, Any]) -> Any:
    show(tmp_path, *items)
    return job.pods()


def until_note(events: Iterator[JobEvent]) -> str:
    return next(each.text for each in events if isinstance(each, JobNote))


BEFORE = "2026-11-28T17:59:59Z"
OTHERS = [{"kind": "ReplicaSet", "name": "digits-ps-0", "uid": "job"}]
ANOTHER = [{"kind": "Job", "name": "digits-ps-1", "uid": "job"}]
UID = "jobset.sigs.k8s.io/jobset-uid"


@pytest.mark.parametrize(
    ("items", "uid"),
    [
        ([jobset(), pod(ended(1), creationTimestamp=BEFORE)], None),
        ([jobset(), pod(running()), pod(ended(1), "b", creationTimestamp=BEFORE)], "a"),
        # The clock of another API server is late.
        ([pod(running(), creationTimestamp=BEFORE, labels={UID: "uid-1"})], "a"),
        ([pod(running(), labels={UID: "uid-0"})], None),
        ([jobset("uid-0", creationTimestamp=BEFORE), pod(running())], "a"),
        ([pod(running()), pod(ended(1), "b", ownerReferences=OTHERS)], "a"),
        ([pod(running()), pod(ended(1), "b", ownerReferences=None)], "a"),
        ([pod(running()), pod(ended(1), "b", ownerReferences=ANOTHER)], "a"),
        # Of two pods of one second, the older one is deleted.
        ([pod(running(), "b", deletionTimestamp=CREATED), pod(running())], "a"),
        ([pod(running()), pod(running(), "b", deletionTimestamp=CREATED)], "a"),
    ],
)
def test_the_pod_of_a_node_is_that_of_its_job(
    items: list[dict[str, Any]], uid: str | None, tmp_path: Path
) -> None:
    job = job_with(tmp_path, "*) cat pods;;")
    found = pods_of(job, tmp_path, *items)
    assert {node: each.uid for node, each in found.pods.items()} == (
        {"ps:0": uid} if uid else {}
    )
    own = {"name": "digits", "uid": "uid-1"}
    assert found.is_there == any(own.items() <= i["metadata"].items() for i in items)
    assert not job.replaced.is_set()


def test_the_pod_of_an_indexed_job_is_told_by_the_uid_of_that(tmp_path: Path) -> None:
    job = job_with(tmp_path, "*) cat pods;;", is_jobset=False)

    def of(uid: str, name: str, created: str) -> dict[str, Any]:
        return pod(
            running(),
            name,
            creationTimestamp=created,
            annotations={"batch.kubernetes.io/job-completion-index": "0"},
            ownerReferences=[{"kind": "Job", "name": "digits-ps", "uid": uid}],
        )

    own, other = of("uid-1", "own", BEFORE), of("uid-0", "other", CREATED)
    found = pods_of(job, tmp_path, other, own)
    assert {node: each.uid for node, each in found.pods.items()} == {"ps:0": "own"}


def test_another_job_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    job = job_with(tmp_path, "*get*) cat pods;; *logs*) ;; *) echo $* >>calls;;")
    later = {"creationTimestamp": "2026-11-28T18:05:00Z"}
    show(tmp_path, jobset("uid-2", **later), pod(running(), **later))
    events = [*kubernetes.watch(job)]
    assert events == [
        JobNote("JobSet digits was replaced by another job, which is kept"),
        NodeEnded("ps:0", None, "its job was deleted"),
    ]
    job.cancel()
    assert not (tmp_path / "calls").exists()


def test_containers_that_a_cluster_adds_to_pods_are_not_the_node(
    tmp_path: Path,
) -> None:
    job = job_with(tmp_path, "*) cat pods;;")
    status = running()
    status["containerStatuses"].insert(0, ended(1, "mesh")["containerStatuses"][0])
    found = pods_of(job, tmp_path, jobset(), pod(status)).pods["ps:0"]
    assert found.has_log
    assert found.end is None


def disrupted(status: dict[str, Any]) -> dict[str, Any]:
    why = {"reason": "PreemptionByScheduler", "message": "a pod of\na higher priority"}
    condition = {"type": "DisruptionTarget", "status": "True", **why}
    return {**status, "conditions": [condition]}


def test_a_pod_that_makes_room_for_another_one_says_so(tmp_path: Path) -> None:
    job = job_with(
        tmp_path, "*get*) cat pods;; *logs*) [ ! -e after ] || mv after pods;;"
    )
    show(tmp_path, jobset())
    (tmp_path / "pods").rename(tmp_path / "after")
    show(tmp_path, jobset(), pod(disrupted(running())))
    why = "PreemptionByScheduler: a pod of a higher priority"
    assert [*kubernetes.watch(job)] == [
        NodeEnded("ps:0", None, f"its pod was deleted ({why})")
    ]
    found = pods_of(job, tmp_path, jobset(), pod(disrupted(ended(137))))
    assert found.pods["ps:0"].end.why == why


@pytest.mark.parametrize(
    "printed",
    [
        "Warning: use another version",
        '{"items": [{"kind": "Pod"}]}',
        '{"items": [{"kind": "Pod", "metadata": {"name": 1}}]}',
        '{"items": null}',
        "[" * 100_000,
    ],
)
def test_a_kubectl_that_prints_something_else_is_quoted(
    printed: str, tmp_path: Path
) -> None:
    (tmp_path / "pods").write_text(printed)
    with pytest.raises(KubectlError) as caught:
        job_with(tmp_path, "*) cat pods;;").pods()
    assert "`kubectl get` did not print a list of pods: " in caught.value.message
    assert printed[:40] in caught.value.message


def test_a_job_that_is_followed_goes_on_after_an_answer_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENT", 0.0)
    job = job_with(
        tmp_path, "*get*) cat pods; [ ! -e after ] || mv after pods;; *logs*) ;;"
    )
    show(tmp_path, jobset(), pod(ended(3)))
    (tmp_path / "pods").rename(tmp_path / "after")
    (tmp_path / "pods").write_text("?")
    note, again, end = kubernetes.watch(job)
    assert isinstance(note, JobNote)
    assert note.text.endswith("b'?'; trying again")
    assert again == JobNote("the cluster answers again")
    assert end == NodeEnded("ps:0", 3)
    monkeypatch.setattr(following, "GIVEN_UP", 0.0)
    (tmp_path / "pods").write_text("?")
    with pytest.raises(RunError, match="JobSet digits can no longer be followed"):
        next(kubernetes.watch(job))  # else it is a note


def test_ends_are_told_in_the_order_of_their_times(tmp_path: Path) -> None:
    """The first one is the cause: others follow from it."""
    nodes = ["ps:0", "ps:1", "ps:2"]
    job = job_with(tmp_path, "*get*) cat pods;; *) ;;", nodes=nodes)
    pods = []
    for i, second in enumerate([2, 3, 1]):
        there = pod(
            ended(i),
            f"uid-{i}",
            ownerReferences=[{"kind": "Job", "name": f"digits-ps-{i}", "uid": "job"}],
        )
        state = there["status"]["containerStatuses"][0]["state"]["terminated"]
        state["finishedAt"] = f"2026-11-28T18:00:0{second}Z"
        pods.append(there)
    show(tmp_path, jobset(), *pods)
    assert [each.node for each in kubernetes.watch(job)] == ["ps:2", "ps:0", "ps:1"]


def test_why_there_are_no_pods_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SLOW", 0.0)
    job = job_with(tmp_path, "*events*) cat events;; *get*) cat pods;;")
    show(tmp_path, jobset())
    said = 'pods "digits-ps-0-0-" is forbidden: exceeded quota: memory'
    items = [
        {
            "involvedObject": {"kind": "Job", "name": name},
            "reason": reason,
            "message": said,
            "lastTimestamp": time,
        }
        for name, reason, time in [
            ("digits-ps-0", "FailedCreate", "2026-11-28T18:00:02Z"),
            ("digits-ps-0", "Earlier", "2026-11-28T18:00:01Z"),
            ("another", "Other", None),
        ]
    ]
    (tmp_path / "events").write_text(json.dumps({"items": items}))
    assert until_note(kubernetes.watch(job)) == (
        f"waits for pods of ps:0: FailedCreate: {said}"
    )
    (tmp_path / "events").write_text("")
    assert until_note(kubernetes.watch(job)) == (
        f"waits for pods of ps:0: `{tmp_path}/kubectl get events` may say why"
    )


@pytest.mark.parametrize("is_placed", [True, False])
def test_a_pod_that_cannot_begin_on_its_machine_is_lost(
    is_placed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "STUCK", 0.0)
    monkeypatch.setattr(following, "PATIENCE", 0.0)
    job = job_with(tmp_path, "*get*) cat pods;; *) ;;")
    back_off = {"reason": "ImagePullBackOff", "message": "no such\nimage"}
    state = {"name": "node", "state": {"waiting": back_off}}
    there = pod({"phase": "Pending", "containerStatuses": [state]})
    there["spec"] = {"nodeName": "m1" if is_placed else ""}
    show(tmp_path, jobset(), there)
    watching = kubernetes.watch(job)
    why = "ImagePullBackOff: no such image"
    expected = (
        NodeEnded("ps:0", None, why, "m1") if is_placed else JobNote(f"ps:0: {why}")
    )
    assert next(watching) == expected
    watching.close()


def test_a_pod_of_a_lost_machine_is_made_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "OVERDUE", 0.0)
    log = f"echo '{CREATED} '$(cat start)"
    job = job_with(tmp_path, f"*get*) cat pods;; *logs*) {log};; *) ;;", restarts=True)
    (tmp_path / "start").write_bytes(write_event(Start(1, 9, 9, attempt=3)))
    deleted = {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 0}
    there = {**pod(running(), **deleted), "spec": {"nodeName": "m1"}}
    show(tmp_path, jobset(), there)
    watching = kubernetes.watch(job)
    text = "ps:0 is on the machine m1, which does not answer: Kubernetes makes the pod"
    assert until_note(watching).startswith(text)
    lines = (line for e in watching if isinstance(e, NodeLines) for line in e.lines)
    events = (read_event("ps:0", line) for line in lines)
    event = next(event for event in events if isinstance(event, Left))
    assert (event.attempt, event.root) == (3, True)
    assert event.cause.what == "was lost (its machine does not answer)"
    later = {"creationTimestamp": "2026-11-28T18:05:00Z"}
    show(tmp_path, jobset(), there, pod(ended(0), "b", **later))
    assert until_note(watching) == "ps:0 starts again in another pod"
    assert [*watching][-1] == NodeEnded("ps:0", 0)


def test_logs_that_the_user_may_not_read_end_the_watch(tmp_path: Path) -> None:
    job = job_with(
        tmp_path, f"*get*) cat pods;; *logs*) echo '{FORBIDDEN}' >&2; exit 1;;"
    )
    show(tmp_path, jobset(), pod(running()))
    with pytest.raises(RunError) as caught:
        list(kubernetes.watch(job))
    assert f"can no longer be followed: {FORBIDDEN}" in caught.value.message
    assert (
        caught.value.hint == f"the job keeps running; end it with: {job.cancel_command}"
    )


def test_logs_that_cannot_be_read_for_a_while_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENT", 0.0)
    job = job_with(tmp_path, "*get*) cat pods;; *logs*) echo 'no route' >&2; exit 1;;")
    show(tmp_path, jobset(), pod(running()))
    watching = kubernetes.watch(job)
    assert (
        until_note(watching) == "the log of ps:0 cannot be read: no route; trying again"
    )
    watching.close()


def test_a_log_without_an_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "UNREAD", 0.05)
    threads = threading.active_count()
    job = job_with(tmp_path, f"*get*) cat pods;; *logs*) {OPEN};;")
    show(tmp_path, jobset(), pod(ended(3)))
    late = "the log of ps:0 is incomplete: it was not read to its end in time"
    assert {*kubernetes.watch(job)} - {JobNote(late)} == {NodeEnded("ps:0", 3)}
    (tmp_path / "closed").touch()
    eventually(lambda: threading.active_count() <= threads)


def test_a_log_that_nobody_takes_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = threading.Event()

    class Noticed(Queue[Any]):
        def put(self, *item: Any, **how: Any) -> None:
            try:
                super().put(*item, **how)
            except Full:
                is_full.set()
                raise

    monkeypatch.setattr(following, "MOST_WAITING", 4)
    monkeypatch.setattr(following, "Queue", Noticed)
    lines = f"seq -f '{CREATED} %.0f' 100000"
    job = job_with(tmp_path, f"*get*) cat pods;; *logs*) {lines};;")
    show(tmp_path, jobset(), pod(ended(3)))
    events = []
    for event in kubernetes.watch(job):
        assert is_full.wait(20)
        events.append(event)
    assert events.pop() == NodeEnded("ps:0", 3)
    text = b"".join(each.text for each in events if isinstance(each, NodeLog))
    assert text == b"".join(b"%d\n" % i for i in range(1, 100_001))


def read_log(tmp_path: Path, script: str) -> list[Any]:
    """Return what is read of a log, and with what it has ended."""
    got: SimpleQueue[Any] = SimpleQueue()
    kubectl = job_with(tmp_path, f"*) {script};;").kubectl
    log = logs.PodLog(kubectl, "ps:0", "digits-ps-0", got.put, print, got.put)
    log.finish()
    found = []
    while not found or not isinstance(found[-1], str):
        found.append(got.get(timeout=20))
    return found


def test_the_log_of_a_pod_that_has_ended_is_read_until_the_cluster_answers(
    tmp_path: Path,
) -> None:
    count = "echo >>n; [ $(wc -l <n) -gt 5 ] || { echo refused >&2; exit 1; }"
    found = read_log(tmp_path, f"{count}; echo '{CREATED} {EVENT.decode()}'")
    assert found == [NodeLines("ps:0", [EVENT]), ""]


def test_a_log_that_cannot_be_read_says_why_when_its_node_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CLOSED", 20.0)
    tried = tmp_path / "tried"
    fail = "echo >>tried; echo refused >&2; exit 1"
    job = job_with(tmp_path, f"*get*) cat pods;; *logs*) {fail};;")
    show(tmp_path, jobset(), pod(ended(0)))

    def give_up() -> None:
        eventually(lambda: tried.exists() and tried.stat().st_size > 1)
        monkeypatch.setattr(following, "UNREAD", 0.0)

    tries = threading.Thread(target=give_up)
    tries.start()
    note, end = kubernetes.watch(job)
    tries.join()
    assert note == JobNote("the log of ps:0 is incomplete: refused")
    assert end == NodeEnded("ps:0", 0)


def test_half_a_line_of_a_connection_that_breaks_is_read_again(tmp_path: Path) -> None:
    # At the first time the pod may run still.
    half = f"printf '{CREATED} {{\"event\":'; exit 1"
    once = f"echo >>n; case $(wc -l <n) in 1) exit 1;; 2) {half};; esac"
    found = read_log(tmp_path, f"{once}; printf '{CREATED} {EVENT.decode()}'")
    assert found == [NodeLines("ps:0", [EVENT]), ""]


def test_lines_that_are_no_events_are_a_part_of_the_log(tmp_path: Path) -> None:
    nested = b'{"event":' + b"[" * 100_000 + b"}"
    others = b'{"event":"state","node":"ps.x","state":"training"}'
    lines = [nested, others, bytes(range(1, 10)) + b"\xff\xfe", b"x" * 3_000_000, b""]
    stamp = f"{CREATED} ".encode()
    odd = b"2026-99-99T99:99:99Z a line\n"
    text = b"".join(stamp + line + b"\n" for line in lines) + odd
    (tmp_path / "log").write_bytes(text + stamp + EVENT)
    *read, event, end = read_log(tmp_path, "cat log")
    assert {type(each) for each in read} == {NodeLog}
    whole, *_ = b"".join(each.text for each in read).split(odd)  # once or again
    assert whole == b"\n".join([*lines, b""])
    assert event == NodeLines("ps:0", [EVENT])
    assert end == ""


def test_a_kubectl_that_warns_at_length_is_not_stopped_by_that(tmp_path: Path) -> None:
    warn = "head -c 1000000 /dev/zero >&2; echo 2026-11-28T18:00:00Z a"
    assert read_log(tmp_path, warn) == [NodeLog("ps:0", b"a\n"), ""]


def test_a_kubectl_whose_output_stays_open_is_not_waited_for(tmp_path: Path) -> None:
    kubectl = job_with(tmp_path, f"*) echo some; {OPEN};;").kubectl
    with pytest.raises(KubectlError, match="has not answered") as caught:
        kubectl.run("get", timeout=0.1)
    (tmp_path / "closed").touch()
    assert caught.value.has_timed_out
    assert caught.value.printed == b"some\n"


def test_a_job_that_was_to_end_is_not_followed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CANCELLED", 0.1)
    cases = "*get*) cat pods;; *logs*) touch read; exec sleep 600;; *) exit 1;;"
    job = job_with(tmp_path, cases)
    show(tmp_path, jobset(), pod(running()))
    cancelled = threading.Thread(
        target=lambda: (eventually((tmp_path / "read").exists), job.cancelling.set())
    )
    cancelled.start()
    (note,) = kubernetes.watch(job)
    assert isinstance(note, JobNote)
    assert note.text.endswith(f"this deletes it: {job.cancel_command}")
    cancelled.join()


MADE = f"ConfigMap digits-build uid-2 {CREATED}"


def test_what_was_made_of_a_job_that_is_refused_is_deleted_and_nothing_else(
    tmp_path: Path,
) -> None:
    printed = f"echo '{MADE}'; echo 'Secret another uid-3 {CREATED}'; echo all"
    job = job_with(
        tmp_path, f"create*) {printed}; exit 1;; *) echo $* >>calls;;", uid="none"
    )
    with pytest.raises(KubectlError) as caught:
        job.create([tmp_path / "run.yaml"])
    assert caught.value.hint is None
    calls = (tmp_path / "calls").read_text()
    assert calls == "delete --wait=false --ignore-not-found configmap/digits-build\n"


@pytest.mark.parametrize(
    "cases",
    [
        f"create*) echo '{MADE}'; exit 1;; *) exit 1;;",
        "create*) sleep 600;; *) ;;",
        "create*) echo 'error: unexpected EOF' >&2; exit 1;; *) ;;",
    ],
)
def test_what_may_be_left_of_a_job_is_told(
    cases: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "TIMEOUT", 0.2)
    job = job_with(tmp_path, cases)
    with pytest.raises(KubectlError) as caught:
        job.create([tmp_path / "run.yaml"])
    assert caught.value.hint == (
        f"some objects may be left; delete them with: {job.cancel_command}"
    )


def test_a_kubectl_that_does_not_say_what_it_has_made_is_an_error(
    tmp_path: Path,
) -> None:
    job = job_with(tmp_path, "*) echo jobset/digits created;;")
    job.identity.uids.clear()
    with pytest.raises(KubectlError) as caught:
        job.create([tmp_path / "run.yaml"])
    assert "did not print the created objects: b'jobset/digits" in caught.value.message
    assert caught.value.hint == f"this deletes it: {job.cancel_command}"
