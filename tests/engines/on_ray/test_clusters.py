"""Whether a job fits into a Ray cluster, and what Ray's errors say; without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from placer.engines.ray.cluster import check_fits, no_room, reason
from placer.engines.ray.files import Bundle, RayJobDescription
from placer.errors import RunError

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


@pytest.mark.parametrize(
    ("bundles", "strategy", "problem"),
    [
        (
            [Bundle(5, 0, GB), Bundle(4, 0, GB)],
            "PACK",
            "the plan asks for 9 CPUs, and the cluster has 8 CPUs",
        ),
        (
            [Bundle(1, 0, GB), Bundle(1, 2, GB)],
            "PACK",
            "the plan asks for 2 GPUs, and the cluster has 1 GPU",
        ),
        (
            [Bundle(1, 0, GB), Bundle(1, 0, 9 * GB)],
            "PACK",
            "worker:1 asks for 9.0 GB of memory, and no machine has more than 8.0 GB of"
            " memory",
        ),
        (
            [Bundle(3, 0, GB), Bundle(3, 0, GB)],
            "STRICT_PACK",
            "the plan asks for 6 CPUs on one machine, and none has more than 4 CPUs",
        ),
        (
            [Bundle(1, 0, GB)] * 3,
            "STRICT_SPREAD",
            "the plan asks for 3 machines, and the cluster has 2",
        ),
    ],
)
def test_a_job_that_never_fits_says_what_there_is(bundles, strategy, problem):
    with pytest.raises(RunError) as caught:
        check_fits(TWO, job(*bundles, strategy=strategy))
    assert caught.value.message == f"the Ray cluster is too small: {problem}"


def test_a_job_that_may_fit_is_no_error():
    check_fits(TWO, job(Bundle(4, 1, 8 * GB), Bundle(4, 0, 8 * GB)))


def test_a_job_without_room_says_what_is_free():
    error = no_room(TWO, job(Bundle(2, 0, 3 * GB), Bundle(2, 0, 3 * GB)))
    assert error.message == (
        "the Ray cluster has had no room for the job within 300 s: the plan asks for 4"
        " CPUs, 6.0 GB of memory on 2 nodes (PACK), and the cluster has 8 CPUs (4 free),"
        " 16.0 GB of memory (8.0 GB free)"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name:"
            " RayNode\n\tpid: 4561\nThe actor is dead because its worker process has"
            " died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker"
            " unexpectedly exits with a connection error code 2. End of file. Some common"
            " causes include: (1) the process was killed by the OOM killer",
            "its worker process has died: Worker unexpectedly exits with a connection"
            " error code 2. End of file",
        ),
        (
            "The actor died unexpectedly before finishing this task.\nThe actor died"
            " because its node has died. Node Id: 12b3\n\tthe actor's node was terminated"
            " unexpectedly",
            "its node has died",
        ),
        (
            "The actor a49e is unavailable: The actor is temporarily unavailable:"
            " RpcError: RPC error: Socket closed rpc_code: 14. The task may or may not"
            " have been executed on the actor.",
            "actor is temporarily unavailable: RpcError: RPC error: Socket closed",
        ),
        ("something else\n  happened", "something else happened"),
    ],
)
def test_the_reason_of_a_lost_actor_is_one_line(text, expected):
    assert reason(RuntimeError(text)) == f"Ray says: {expected}"
