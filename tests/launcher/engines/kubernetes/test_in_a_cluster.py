"""Manifests as a cluster runs them: names, environment, mounts, and the ends of jobs.

The nodes are scripts; `test_runs.py` has real ones.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from support.hosts import needs_hosts
from support.kubernetes.pod import Pod
from support.kubernetes.requests import (
    needs_of,
    request_of_build,
)
from support.kubernetes.scripted import (
    SURROUNDINGS,
    UNTIL_READ,
    assert_nothing_is_left,
    ends,
    left,
    notes,
    place,
    said,
    watched,
    watched_to_end,
)

import placer
from placer.errors import PlacerError
from placer.launcher.engines import kubernetes
from placer.launcher.engines.engine import JobEvent, JobNote, Needs, NodeEnded, NodeLog
from placer.launcher.engines.kubernetes import following, kubectl, logs
from placer.system.resources import find_file

pytestmark = needs_hosts


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of two workers and two servers."""
    folder = tmp_path_factory.mktemp("digits") / "build"
    placer.compile(find_file("specs/digits.yaml"), folder)
    return folder


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for pods and logs so often that tests are short."""
    monkeypatch.setattr(following, "POLL", 0.2)
    monkeypatch.setattr(following, "PATIENCE", 0.2)
    monkeypatch.setattr(logs, "_RETRY", 0.1)


@pytest.mark.parametrize("crd", ["jobset", "none"])
def test_pods_have_names_mounts_and_what_the_manifests_say(
    crd: str, build: Path, tmp_path: Path
) -> None:
    needs = needs_of(["worker:0", "worker:1", "ps:0", "ps:1"])
    needs["worker:0"] = Needs(2 << 20, 0)  # so that the workers are two groups
    words = ["--steps=3", "--x=$(HOME) $$ '"]
    request = request_of_build(build, *words, name="My_Run", needs=needs)
    with place(tmp_path) as here:
        job = here.submit(request, SURROUNDINGS + UNTIL_READ, crd=crd)
        assert job.title == ("JobSet my-run" if crd == "jobset" else "jobs my-run")
        events = watched_to_end(here, job, 5)
        assert_nothing_is_left(here)
    told = said(events)
    assert {*told} == {*ends(events)} == {*request.needs}
    assert {end.status for end in ends(events).values()} == {0}
    suffix = "-0" if crd == "jobset" else ""
    names = ["worker-0-0", "worker-1-0", "ps-0", "ps-1"]
    expected = {
        node: f"my-run-{name}{suffix}.my-run"
        for node, name in zip(needs, names, strict=True)
    }
    addresses = {each["name"]: each["address"] for each in told["ps:0"][1:]}
    assert [*addresses] == [*expected.values()]
    assert len({*addresses.values()}) == 4
    for node, (first, *names) in told.items():
        assert {each["name"]: each["address"] for each in names} == addresses
        assert first["node"] == node
        assert first["host"] == expected[node].partition(".")[0]
        assert first["address"] == addresses[expected[node]]
        assert first["ids"] == [1, 0]
        assert first["key"] == ["0o600", 0]
        assert first["capabilities"] == "0" * 16
        assert first["files"] == [path.name for path in sorted(build.iterdir())]
        command = first["arguments"]
        assert command[-2:] == words
        assert command[command.index("--bind") + 1] == f"{first['address']}:27600"
        assert command[command.index("run") + 1] == "/placer/run/build"
        text = b"".join(
            each.text
            for each in events
            if isinstance(each, NodeLog) and each.node == node
        )
        assert sorted(text.splitlines()) == [b"a line of the log", b"another"]


def test_a_build_on_a_volume_is_compared_with_that_which_was_launched(
    build: Path, tmp_path: Path
) -> None:
    request = request_of_build(build, needs=needs_of(["worker:0"]))
    code = "event(command=sys.argv, trust=os.environ['PLACER_TRUST'])"
    with place(tmp_path) as here:
        shutil.copytree(build, here.shared / "a build")
        job = here.submit(request, code, build="/shared/a build")
        assert not any("build" in name for kind, name in here.cluster.objects)
        (told,) = said(watched(job))["worker:0"]
        command = told["command"]
        assert command[command.index("run") + 1] == "/shared/a build" == told["trust"]
        (here.shared / "a build" / "plan.json").write_text("{}")
        events = watched(here.submit(request, code, build="/shared/a build"))
    assert ends(events)["worker:0"].status == 2
    text = b"".join(each.text for each in events if isinstance(each, NodeLog))
    assert b"/shared/a build is not the build of this run" in text


def test_nodes_of_another_user_have_the_key_as_a_file_of_their_own(
    build: Path, tmp_path: Path
) -> None:
    request = request_of_build(build, needs=needs_of(["worker:0"]))
    with place(tmp_path) as here:
        job = here.submit(request, user=1234)
        # The interpreter of the tests may be in a folder of another user.
        (here.shared / "python").write_text(
            "#!/bin/sh\nid -u; stat -c '%a %u' $PLACER_KEY_FILE; cat $PLACER_KEY_FILE\n"
            "ls $PLACER_TRUST/build/plan.json; rm $0 2>/dev/null || echo no\n"
        )
        here.release("go")
        events = watched(job)
    log = b"".join(each.text for each in events if isinstance(each, NodeLog))
    user, mode, key, plan, removed = log.decode().splitlines()
    assert (user, mode, removed) == ("1234", "600 1234", "no")
    assert bytes.fromhex(key) == request.key.secret
    assert plan == "/placer/run/build/plan.json"
    assert ends(events)["worker:0"].status == 0


def test_a_job_is_done_when_its_workers_are(build: Path, tmp_path: Path) -> None:
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "event()\n"
        "if node.startswith('ps'): time.sleep(600)\n"
    )
    with place(tmp_path) as here:
        job = here.submit(request_of_build(build), code + UNTIL_READ)
        events = watched_to_end(here, job, 1)
        assert_nothing_is_left(here)
    assert {node: end.status for node, end in ends(events).items()} == dict.fromkeys(
        {*said(events)}, 0
    )
    assert len(said(events)) == 4


@pytest.mark.parametrize(
    ("crd", "reason", "why"),
    [
        ("none", "", ""),
        ("jobset", "OOMKilled", "OOMKilled: its memory limit is 256Mi"),
    ],
)
def test_a_node_that_fails_ends_the_job_and_is_named_first(
    crd: str,
    reason: str,
    why: str,
    build: Path,
    tmp_path: Path,
) -> None:
    code = "event(); time.sleep(600)"
    with place(tmp_path) as here:
        job = here.submit(request_of_build(build), code, crd=crd)
        events: list[JobEvent] = []
        for event in kubernetes.watch(job):
            events.append(event)
            if not ends(events) and len(said(events)) == 4:
                here.cluster.pod("digits-ps-1").signal(signal.SIGKILL, reason)
            if ends(events) and not job.cancelled.is_set():
                job.cancel()  # as the launcher does; a JobSet ends the others itself
        assert_nothing_is_left(here)
    first = next(iter(ends(events).values()))
    assert first == NodeEnded("ps:1", -9, why, "machine-1")


def test_one_job_that_is_restarted_is_followed_again(
    build: Path, tmp_path: Path
) -> None:
    code = SURROUNDINGS + (
        "until('/shared/go')\nevent(again=socket.gethostbyname('digits-ps-1-0.digits'))"
    )
    with place(tmp_path) as here:
        job = here.submit(request_of_build(build), code)
        first = ""
        events: list[JobEvent] = []
        for event in kubernetes.watch(job):
            events.append(event)
            begun = said(events)
            if not first and all(len(begun.get(node, ())) == 5 for node in job.nodes):
                first = begun["ps:1"][0]["address"]
                here.cluster.delete("Job", "digits-ps-1")
            if len(begun.get("ps:1", ())) == 10:
                here.release("go")
        assert_nothing_is_left(here)
    assert notes(events) == ["ps:1 starts again in another pod"]
    assert {end.status for end in ends(events).values()} == {0}
    told = said(events)
    (again,) = {each[-1]["again"] for each in told.values()}
    assert again == told["ps:1"][5]["address"] != first


AGAIN = """\
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
event(host=socket.gethostname(), address=os.environ["POD_IP"])
until("/shared/fail")
sys.exit(1)
"""


@pytest.mark.parametrize("crd", ["jobset", "none"])
def test_a_pod_that_fails_is_made_again_by_its_job(
    crd: str, build: Path, tmp_path: Path
) -> None:
    """With a JobSet up to the limit, with Jobs until a failure that ends the run."""
    needs = needs_of(["worker:0", "ps:0", "ps:1"])
    request = request_of_build(build, needs=needs, saves=True, restarts=1)
    with place(tmp_path) as here:
        job = here.submit(request, AGAIN, crd=crd)
        events: list[JobEvent] = []
        done = 0

        def pod_of(name: str, ends: int) -> Pod | None:
            """Return a pod that has begun, after so many ends of pods before."""
            node = name[:-2] + ":" + name[-1]
            has_begun = len(said(events).get(node, ())) == ends + 1
            return here.cluster.pod(f"digits-{name}") if has_begun else None

        for event in kubernetes.watch(job):
            events.append(event)
            if done == 0 and (pod := pod_of("ps-1", 0)) is not None:
                # A pod that is deleted instead would be made again.
                here.kubectl.failing["exec"] = "Error from server (Forbidden)"
                with pytest.raises(PlacerError, match="Forbidden"):
                    job.stop()
                pod.signal(signal.SIGKILL, "OOMKilled")
                done = 1
            elif done == 1 and (pod := pod_of("ps-1", 1)) is not None:
                # An end that does not count.
                here.cluster.evict_pod(pod, "EvictionByEvictionAPI")
                done = 2
            elif done == 2 and (pod := pod_of("ps-1", 2)) is not None:
                done = 3
                if crd == "jobset":
                    pod.signal(signal.SIGKILL, "OOMKilled")
                else:
                    here.release("fail")
        assert_nothing_is_left(here)
    killed = "was killed by SIGKILL (OOMKilled: its memory limit is 1Mi)"
    first, second, *others = left(events)
    assert first == ("ps:1", killed)
    assert second[0] == "ps:1"
    evicted = ("was lost (its pod was deleted", "was killed by SIGTERM")
    assert second[1].startswith(evicted)
    assert len(others) <= 1  # the last pod, until its Job is known to have failed
    again = "ps:1 starts again in another pod"
    assert notes(events) == [again] * 2
    hosts, addresses = zip(
        *((each["host"], each["address"]) for each in said(events)["ps:1"]), strict=True
    )
    assert len({*hosts}) == 1
    assert len({*addresses}) == 3
    end = next(iter(ends(events).values()))
    if crd == "jobset":
        assert (end.node, end.status) == ("ps:1", -9)
        assert end.why.startswith("OOMKilled: its memory limit is 1Mi")
    else:
        assert end.status == 1
    assert len(ends(events)) == 3


def test_what_pods_wait_for_is_said_once(build: Path, tmp_path: Path) -> None:
    needs = {
        **needs_of(["worker:0", "worker:1", "ps:0"]),
        "worker:0": Needs(1 << 20, 2),
    }
    request = request_of_build(build, needs=needs)
    with place(tmp_path, gpus=1) as here:
        job = here.submit(request, image="registry.example/other")
        watching = kubernetes.watch(job)
        got = {next(watching), next(watching)}
        assert got == {
            JobNote(
                "worker:0: Unschedulable: 0/1 nodes are available: 1 Insufficient"
                " nvidia.com/gpu (2)."
            ),
            JobNote(
                "worker:1, ps:0: ImagePullBackOff: Back-off pulling image"
                ' "registry.example/other"'
            ),
        }
        job.cancel()
        ended = [*watching]
        assert_nothing_is_left(here)
    assert {*ended} == {
        NodeEnded("worker:0", None, "its job was deleted", ""),
        NodeEnded("worker:1", None, "its job was deleted", "machine-1"),
        NodeEnded("ps:0", None, "its job was deleted", "machine-1"),
    }


@pytest.mark.parametrize("may_execute", [True, False])
def test_nodes_are_asked_to_stop(
    may_execute: bool, build: Path, tmp_path: Path
) -> None:
    code = (
        "def stop(number, frame):\n"
        "    event(signal=number); open('/shared/stop', 'w'); sys.exit(0)\n"
        "for each in (signal.SIGUSR1, signal.SIGTERM): signal.signal(each, stop)\n"
        "event(); until('/shared/stop')\n"
    )
    with place(tmp_path) as here:
        if not may_execute:
            here.kubectl.failing["exec"] = "Error from server (Forbidden): pods/exec"
        job = here.submit(request_of_build(build, saves=True), code)
        events: list[JobEvent] = []
        asked = False
        for event in kubernetes.watch(job):
            events.append(event)
            if len(said(events)) == 4 and not asked:
                job.stop()
                asked = True
        assert_nothing_is_left(here)
    got = said(events)["worker:0"][-1]["signal"]
    assert got == (signal.SIGUSR1 if may_execute else signal.SIGTERM)
    if may_execute:
        assert ends(events)["worker:0"].status == 0


def test_a_second_job_of_the_same_name_is_refused_and_changes_nothing(
    build: Path, tmp_path: Path
) -> None:
    with place(tmp_path) as here:
        code = "until('/shared/go')"  # of both: they share the file of the script
        job = here.submit(request_of_build(build), code, crd="none")
        there = {*here.cluster.objects}
        with pytest.raises(PlacerError) as caught:
            here.submit(request_of_build(build), code, crd="none")
        assert "AlreadyExists" in str(caught.value)
        assert "hint: a run with this name exists" in str(caught.value)
        assert {*here.cluster.objects} == there
        here.release("go")
        assert {end.status for end in ends(watched(job)).values()} == {0}


def test_a_cluster_without_jobset_is_told_and_nothing_is_left(
    build: Path, tmp_path: Path
) -> None:
    with place(tmp_path, has_jobset=False) as here:
        with pytest.raises(PlacerError) as caught:
            here.submit(request_of_build(build))
        assert 'no matches for kind "JobSet"' in str(caught.value)
        assert "hint: this cluster has no JobSet: install it" in str(caught.value)
        assert "--option crd=none" in str(caught.value)
        assert_nothing_is_left(here)


FAILING = """\
#!/bin/bash
echo >>{calls}
RANDOM=$(({seed} + $(wc -l <{calls})))
chance=$((RANDOM % 100))
case "$1" in create | delete) chance=100;; esac
if [ $chance -lt 8 ]; then
  echo "Unable to connect to the server: EOF" >&2; exit 1
elif [ $chance -lt 14 ]; then
  echo "something else"; exit 0
elif [ $chance -lt 18 ]; then
  sleep 2; exit 0
elif [ $chance -lt 40 ] && [ $1 = logs ]; then
  {kubectl} "$@" & sleep 0.$((RANDOM % 4 + 1)); kill -9 $!; exit 1
elif [ $chance -lt 50 ] && [ $1 = logs ]; then
  {kubectl} "$@" | head -c $((RANDOM % 9000)); exit 0
fi
exec {kubectl} "$@"
"""
"""A kubectl that fails, prints something else, hangs, is killed, or ends early: each call
as the seed and the number of the call say."""


@pytest.mark.slow
def test_all_is_read_once_by_a_kubectl_that_often_fails(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "TIMEOUT", 1.0)
    code = (
        "for i in range(300):\n"
        "    event(i=i); print('line', i, flush=True); time.sleep(0.01)\n"
    )
    with place(tmp_path) as here:
        failing = tmp_path / "failing"
        script = FAILING.replace("{kubectl}", str(here.kubectl.command))
        script = script.replace("{calls}", str(tmp_path / "calls"))
        failing.write_text(script.replace("{seed}", "1000"))
        failing.chmod(0o755)
        here.kubectl.command = failing
        job = here.submit(request_of_build(build), code + UNTIL_READ)
        events = watched_to_end(here, job, 300)
        assert_nothing_is_left(here)
    assert {end.status for end in ends(events).values()} == {0}
    lines = [f"line {i}" for i in range(300)]
    for node, told in said(events).items():
        assert [each["i"] for each in told] == [*range(300)]
        text = b"".join(
            each.text
            for each in events
            if isinstance(each, NodeLog) and each.node == node
        ).decode()
        assert [line for line in text.splitlines() if line in lines] == lines


def test_a_job_is_kept_if_that_is_asked(build: Path, tmp_path: Path) -> None:
    with place(tmp_path) as here:
        request = request_of_build(build, needs=needs_of(["worker:0"]))
        job = here.submit(request, "event()", keep=True)
        assert ends(watched(job))["worker:0"].status == 0
        kept = {"jobset/digits", "configmap/digits-build", "secret/digits-key"}
        assert {*job.cancel_command.split()[2:]} == kept
        words = job.cancel_command.split()[1:]
        assert here.kubectl.run(words, print, print) == 0
        here.cluster.wait(lambda: not here.cluster.pods)
        assert_nothing_is_left(here)
