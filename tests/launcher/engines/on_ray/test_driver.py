"""What the driver of a job on Ray makes of answers of its actors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.ray_cluster import needs_ray

from placer.errors import RunError
from placer.launcher.engines.ray.files import RayJobDescription

pytestmark = needs_ray


def test_a_lost_connection_is_the_error_of_the_job(monkeypatch, tmp_path):
    from placer.launcher.engines.ray import driver

    def wait(seconds: float) -> bool:
        raise ConnectionError("GRPC connection failed:\nclosed")

    ends: list[str] = []
    nodes = SimpleNamespace(
        group=SimpleNamespace(wait=wait), end=lambda: ends.append("nodes")
    )
    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    fake = SimpleNamespace(
        get_runtime_context=lambda: context, shutdown=lambda: ends.append("ray")
    )
    for name, value in {
        "ray": fake,
        "read_build": lambda folder, digest: {},
        "connect": lambda ray, address, give_up: None,
        "Head": lambda address: None,
        "RayNodes": lambda job: nodes,
    }.items():
        monkeypatch.setattr(driver, name, value)
    job = RayJobDescription("a", "", "", "PACK", 1, True, {}, [], b"")
    orders = SimpleNamespace(nodes=None)
    with pytest.raises(RunError) as caught:
        driver._run(job, tmp_path, print, orders)
    assert caught.value.message == (
        "the connection to the Ray cluster was lost:\n    GRPC connection failed:\n    closed"
    )
    assert ends == ["nodes", "ray"]


def test_an_actor_that_cannot_be_ended_leaves_the_others_and_the_group_to_end(
    monkeypatch,
):
    from placer.launcher.engines.ray import nodes

    calls: list[str] = []

    def call(name: str) -> str:
        calls.append(name)
        if "ps:0" in name:
            raise Exception("no connection")
        return name

    def actor_of(name: str) -> SimpleNamespace:
        remote = SimpleNamespace(remote=lambda: call(f"end {name}"))
        return SimpleNamespace(kill=remote, name=name)

    fake = SimpleNamespace(
        kill=lambda actor: call(f"kill {actor.name}"),
        wait=lambda ends, **how: call(f"wait for {', '.join(ends)}"),
        util=SimpleNamespace(
            placement_group=lambda *bundles, **how: "group",
            remove_placement_group=lambda group: call(f"remove {group}"),
        ),
    )
    monkeypatch.setattr(nodes, "ray", fake)
    job = RayJobDescription("a", "", "", "PACK", 1, True, {}, [], b"")
    made = nodes.RayNodes(job)
    made.actors = {name: actor_of(name) for name in ("ps:0", "worker:0")}
    made.end()
    assert calls == [
        "end ps:0",
        "end worker:0",
        "wait for end worker:0",
        "kill ps:0",
        "kill worker:0",
        "remove group",
    ]
