"""Whether a job fits into a Ray cluster, and how its driver ends; without Ray."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from placer.channel.endpoint import parse_endpoint
from placer.errors import RunError
from placer.launcher.engines.ray import cluster
from placer.launcher.engines.ray.engine import RayJob
from placer.launcher.engines.ray.files import Bundle, RayJobDescription
from placer.launcher.engines.ray.room import check_fits, no_room

GB = 10**9


def job(*bundles: Bundle, strategy: str = "PACK") -> RayJobDescription:
    return RayJobDescription(
        name="digits",
        digest="",
        address="auto",
        strategy=strategy,
        timeout=300,
        grows=False,
        nodes={f"worker:{i}": bundle for i, bundle in enumerate(bundles)},
        arguments=[],
        secret=bytes(32),
    )


def ray_with(*machines: dict[str, float]) -> SimpleNamespace:
    """Return what is asked of the package `ray` for a cluster with these machines."""
    nodes = [{"Alive": True, "Resources": each} for each in machines]
    dead = {"Alive": False, "Resources": {"CPU": 1000, "GPU": 1000, "memory": 10**15}}
    total = {
        name: sum(each.get(name, 0) for each in machines)
        for name in ("CPU", "GPU", "memory")
    }
    free = {name: amount / 2 for name, amount in total.items()}
    return SimpleNamespace(
        nodes=lambda: [*nodes, dead],
        cluster_resources=lambda: total,
        available_resources=lambda: free,
    )


TWO = ray_with({"CPU": 4, "memory": 8 * GB, "GPU": 1}, {"CPU": 4, "memory": 8 * GB})


GROWS = "with --option grows=true the job waits for machines of an autoscaler"


@pytest.mark.parametrize(
    ("bundles", "strategy", "problem", "hint"),
    [
        (
            [Bundle(5, 0, GB), Bundle(4, 0, GB)],
            "PACK",
            "the plan needs 9 CPUs, but the cluster has 8 CPUs",
            "--option cpus=4 would fit",
        ),
        (
            [Bundle(3, 0, GB)] * 3,
            "PACK",
            "the plan needs 9 CPUs, but the cluster has 8 CPUs",
            "--option cpus=2 would fit",
        ),
        (
            [Bundle(2, 0, 3 * GB)] * 5,
            "PACK",
            "the plan needs 10 CPUs, but the cluster has 8 CPUs; 5 nodes each need 3.0 GB"
            " of memory or more, but the machines have room for 4 of them",
            "--option cpus=1 would fit; --option memory=2543MiB for each node would fit,"
            " if the nodes need no more",
        ),
        (
            [Bundle(1, 0, GB)] * 9,
            "SPREAD",
            "the plan needs 9 CPUs, but the cluster has 8 CPUs",
            "9 nodes need more machines",
        ),
        (
            [Bundle(1, 0, GB), Bundle(1, 2, GB)],
            "PACK",
            "the plan needs 2 GPUs, but the cluster has 1 GPU",
            "a build with fewer `devices`, or --emulate, needs fewer GPUs",
        ),
        (
            [Bundle(1, 0, GB), Bundle(1, 0, 9 * GB)],
            "PACK",
            "worker:1 needs 9.0 GB of memory, but no machine has more than 8.0 GB of"
            " memory",
            "--option memory=7629MiB for each node would fit, if the nodes need no more",
        ),
        (
            [Bundle(3, 0, GB), Bundle(3, 0, GB)],
            "STRICT_PACK",
            "the plan needs 6 CPUs on one machine, but no machine has more than 4 CPUs",
            "--option cpus=2 would fit; --option strategy=PACK uses several machines if"
            " necessary",
        ),
        (
            [Bundle(1, 0, GB)] * 3,
            "STRICT_SPREAD",
            "the plan needs 3 machines, but the cluster has 2",
            "--option strategy=SPREAD puts several nodes on a machine if necessary",
        ),
    ],
)
def test_a_job_that_never_fits_says_what_there_is(bundles, strategy, problem, hint):
    with pytest.raises(RunError) as caught:
        check_fits(TWO, job(*bundles, strategy=strategy))
    assert caught.value.message == f"the Ray cluster is too small: {problem}"
    assert caught.value.hint == f"{hint}; {GROWS}"


def test_a_job_that_may_fit_is_no_error():
    check_fits(TWO, job(Bundle(4, 1, 8 * GB), Bundle(4, 0, 8 * GB)))


def test_a_job_without_room_says_what_is_free():
    error = no_room(TWO, job(Bundle(2, 0, 3 * GB), Bundle(2, 0, 3 * GB)))
    assert error.message == (
        "the Ray cluster had no room for the job within 300 s: the plan needs 4"
        " CPUs, 6.0 GB of memory on 2 nodes (PACK), but the cluster has 8 CPUs (4 free),"
        " 16.0 GB of memory (8.0 GB free)"
    )


@pytest.mark.parametrize(
    ("status", "printed", "message"),
    [
        (-9, "", "the driver of the Ray job was killed by SIGKILL"),
        (-40, "", "the driver of the Ray job was killed by signal 40"),
        (
            2,
            "a\nb\n",
            "the driver of the Ray job has ended with exit status 2:\n    a\n    b",
        ),
        (
            1,
            "[2026-11-28 21:22:59,683 E 6500 6595] rpc_client.h:204: Failed to connect to"
            " GCS within 60 seconds. GCS may have been killed.",
            "the driver of the Ray job has ended with exit status 1: [2026-11-28 21:22:59,683 E"
            " 6500 6595] rpc_client.h:204: Failed to connect to GCS within 60 seconds. GCS"
            " may have been killed.",
        ),
    ],
)
def test_how_a_driver_has_ended_is_told(status, printed, message, tmp_path):
    log = tmp_path / "ray.log"
    log.write_text(printed)
    error = RayJob(SimpleNamespace(end=lambda grace: status), log).failure(None)
    assert error.message == message
    assert error.hint == f"see the output of Ray in {log}"


def test_a_head_that_is_lost_is_told_once(monkeypatch):
    monkeypatch.setattr(cluster, "HEAD_POLL", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = cluster.Head(address)
        assert (head.problem(), head.look()) == ("", "")
    lost = (
        f"the head of the Ray cluster, {address}, does not answer: Connection refused"
    )
    assert head.problem() == lost
    told = f"{lost}; if this lasts, Ray ends the job, by default after 60 s"
    assert (head.look(), head.look()) == (told, "")
    with socket.create_server(parse_endpoint("", address), reuse_port=True):
        assert head.look() == f"the head of the Ray cluster, {address}, answers again"
    # From elsewhere, a head may never be reached.
    assert cluster.Head(address).problem() == ""


@pytest.mark.parametrize(
    ("error", "has_hint"),
    [
        (ConnectionError("Could not find any running Ray instance."), True),
        (RuntimeError("Failed to connect to GCS."), True),
        (
            RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2"),
            False,
        ),
    ],
)
def test_only_a_cluster_that_is_not_found_has_a_hint_to_find_one(error, has_hint):
    def init(**_):
        raise error

    fake = SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=OSError))
    with pytest.raises(RunError) as caught:
        cluster.connect(fake, "auto", print)
    assert str(error).splitlines()[0] in caught.value.message
    assert ("`ray status`" in str(caught.value.hint)) == has_hint


def test_a_cluster_that_accepts_a_connection_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT", 0.01)
    is_given_up = threading.Event()
    errors = []

    def give_up(error):
        errors.append(error)
        is_given_up.set()

    exceptions = SimpleNamespace(RayError=RuntimeError)
    silent = SimpleNamespace(
        init=lambda **_: is_given_up.wait(20), exceptions=exceptions
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster.connect(silent, address, give_up)
    (error,) = errors
    assert error.message == (
        f"'{address}' has not answered as a Ray cluster for 0.01 s"
    )
