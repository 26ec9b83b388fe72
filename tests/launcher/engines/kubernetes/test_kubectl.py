"""What kubectl prints, and how it fails."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from support.kubernetes.requests import needs_of

from placer.launcher.engines.engine import NodeLines, NodeLog
from placer.launcher.engines.kubernetes import logs
from placer.launcher.engines.kubernetes.groups import group_nodes
from placer.launcher.engines.kubernetes.kubectl import Kubectl, KubectlError
from placer.launcher.engines.kubernetes.pods import End, Identity, read_pods

GROUPS = group_nodes(needs_of(["worker:0", "worker:1", "ps:0"]))
CREATED = "2026-11-28T18:00:00Z"
JOB = Identity("digits", GROUPS, True, {"uid-1"}, CREATED)


def pod(
    group: str, number: int, status: dict[str, Any], **metadata: Any
) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"digits-{group}-{number}-0-abcde",
            "uid": metadata.pop("uid", f"{group}{number}"),
            "creationTimestamp": CREATED,
            "ownerReferences": [
                {"kind": "Job", "name": f"digits-{group}-{number}", "uid": "job"}
            ],
            **metadata,
        },
        "spec": {
            "nodeName": "m1",
            "containers": [
                {"name": "node", "resources": {"limits": {"memory": "1Gi"}}}
            ],
        },
        "status": status,
    }


def state_of(status: dict[str, Any], **metadata: Any) -> Any:
    printed = json.dumps({"items": [pod("ps", 0, status, **metadata)]}).encode()
    return read_pods(printed, JOB).pods["ps:0"]


def in_state(phase: str, **state: Any) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]}


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"phase": "Pending"}, None),
        (in_state("Running", running={}), None),
        (
            in_state("Succeeded", terminated={"exitCode": 0, "reason": "Completed"}),
            End(0, ""),
        ),
        (
            in_state("Failed", terminated={"exitCode": 2, "reason": "Error"}),
            End(2, ""),
        ),
        (
            in_state("Failed", terminated={"exitCode": 143, "reason": "Error"}),
            End(-15, ""),
        ),
        (
            in_state("Failed", terminated={"exitCode": 139, "reason": "Error"}),
            End(-11, ""),
        ),
        (
            in_state("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"}),
            End(-9, "OOMKilled: its memory limit is 1Gi"),
        ),
        (
            in_state(
                "Failed",
                terminated={
                    "exitCode": 128,
                    "reason": "StartError",
                    "message": 'exec: "sh":\n not found',
                },
            ),
            End(128, 'StartError: exec: "sh": not found'),
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory. ",
            },
            End(None, "Evicted: The node was low on resource: memory."),
        ),
    ],
)
def test_ends_of_containers(status: dict[str, Any], end: End | None) -> None:
    assert state_of(status).end == end


def test_what_pods_wait_for() -> None:
    waiting = {"reason": "ContainerCreating"}
    assert state_of(in_state("Pending", waiting=waiting)).waiting is None
    waiting = {"reason": "CreateContainerConfigError", "message": 'no secret "a"'}
    found = state_of(in_state("Pending", waiting=waiting))
    assert found.waiting == ("CreateContainerConfigError", 'no secret "a"')
    assert not found.has_log
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    found = state_of({"phase": "Pending", "conditions": [condition]})
    assert found.waiting == ("Unschedulable", "")


def test_the_end_of_a_jobset_is_that_of_all_groups() -> None:
    jobset = {
        "kind": "JobSet",
        "metadata": {"name": "digits", "uid": "uid-1", "creationTimestamp": CREATED},
        "spec": {},
        "status": {
            "conditions": [
                {"type": "StartupPolicyCompleted", "status": "True"},
                {"type": "Completed", "status": "False"},
                {"type": "Failed", "status": "True"},
            ]
        },
    }
    found = read_pods(json.dumps({"items": [jobset]}).encode(), JOB)
    assert found.is_there
    assert found.over == {"worker": False, "ps": False}


def command(tmp_path: Path, script: str) -> Kubectl:
    path = tmp_path / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Kubectl(str(path), "here", "ml")


def test_a_kubectl_that_does_not_end_is_ended(tmp_path: Path) -> None:
    # What it starts has its output, too, as wrappers of kubectl do.
    kubectl = command(tmp_path, "echo some; sleep 600 & echo $! >&2; wait")
    with pytest.raises(KubectlError) as caught:
        kubectl.run("get", timeout=0.2)
    assert caught.value.printed == b"some\n"
    assert "the cluster has not answered `kubectl get` for 0.2 s" in str(caught.value)


def test_errors_of_kubectl_are_told_in_its_words(tmp_path: Path) -> None:
    lines = [f'error: "{name}.yaml": no matches for kind "JobSet"' for name in "ab"]
    said = tmp_path / "said"
    said.write_text("\n".join(lines))
    kubectl = command(tmp_path, f'echo "$*"; cat {said} >&2; exit 1')
    with pytest.raises(KubectlError) as caught:
        kubectl.run("get", "pods")
    assert caught.value.printed == b"--context here --namespace ml get pods\n"
    assert caught.value.message == (
        f"`kubectl get` has failed:\n    {lines[0]}\n    {lines[1]}"
    )
    assert "or use --option crd=none" in str(caught.value.hint)


def test_a_missing_kubectl_is_told() -> None:
    with pytest.raises(KubectlError) as caught:
        Kubectl("no-such-kubectl --x", None, None).run("get")
    assert str(caught.value) == (
        "cannot run 'no-such-kubectl': No such file or directory\n"
        "  hint: install kubectl, or give its path with --option kubectl=PATH"
    )


def test_a_log_is_read_on_after_an_error_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_RETRY", 0.0)
    at = "2026-11-28T18:00:00"
    first = (
        f'{at}.1Z {{"event":"warning","message":"a"}}\n{at}.2Z a line\nunable to retrieve logs of it\n'
        f'{at}.3Z {{"event":"warning","mess'
    )
    second = f'{at}.1Z {{"event":"warning","message":"a"}}\n{at}.2Z a line\n{at}.3Z {{"event":"warning","message":"b"}}\n{at}.4Z e'
    (tmp_path / "first").write_text(first)
    (tmp_path / "second").write_text(second)
    kubectl = command(
        tmp_path,
        f'case "$*" in *--since-time={at}.[234]Z) cat {tmp_path}/second;;'
        f" *) cat {tmp_path}/first; exit 1;; esac",
    )
    got: SimpleQueue[NodeLines | NodeLog] = SimpleQueue()
    ends: SimpleQueue[str] = SimpleQueue()
    log = logs.PodLog(kubectl, "ps:0", "digits-ps-0", got.put, print, ends.put)
    read = [got.get(timeout=20) for _ in range(3)]
    log.finish()
    assert ends.get(timeout=20) == ""
    while not got.empty():
        read.append(got.get())
    assert read == [
        NodeLines("ps:0", [b'{"event":"warning","message":"a"}']),
        NodeLog("ps:0", b"a line\nunable to retrieve logs of it\n"),
        NodeLines("ps:0", [b'{"event":"warning","message":"b"}']),
        NodeLog("ps:0", b"e\n"),
    ]
    log.close()


def test_the_log_of_a_pod_that_is_gone_ends_without_an_error(tmp_path: Path) -> None:
    gone = "echo 'Error from server (NotFound): pods \"p\" not found' >&2; exit 1"
    ends: SimpleQueue[str] = SimpleQueue()
    log = logs.PodLog(command(tmp_path, gone), "ps:0", "p", print, print, ends.put)
    log.finish()
    assert ends.get(timeout=20) == ""
    log.close()


def test_times_of_different_zones_and_digits_are_compared() -> None:
    in_order = [
        "2026-11-28T17:59:59Z",
        "2026-11-28T20:00:00.000000001+02:00",
        "2026-11-28T18:00:00.000000002Z",
        "2026-11-28T18:00:00.1Z",
        "2026-11-28T18:00:01Z",
    ]
    moments = [logs._moment(stamp.encode()) for stamp in in_order]
    assert all(a < b for a, b in pairwise(moments))
