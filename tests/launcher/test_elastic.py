"""Which runs may go on with fewer nodes, and with how many."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from support.small_models import SPECS, two_layers

import placer
from placer.errors import PlacerError
from placer.launcher.absent import Absent
from placer.launcher.cause import Failure
from placer.launcher.elastic import (
    Elastic,
    counts_of,
    hosts_left,
    write_hosts,
)
from placer.launcher.elastic_checks import check_elastic
from placer.launcher.engine_job import OnEngine
from placer.launcher.hosts import read_hosts
from placer.launcher.restarts import Restarts
from placer.plan.plan import SOURCES, read_plan, read_sources, sources_to_json
from placer.runtime.control.events import NodeWarning, Start, State, Step
from placer.runtime.control.options import Options


def elastic_of(build: Path, least, *, restarts=3, plan=None, **options) -> Elastic:
    chosen = {"machines": None, "in_process": False, "folder": lambda: build.parent}
    found = check_elastic(
        build,
        plan or read_plan(build),
        Options(restarts=restarts),
        least,
        **chosen | options,
    )
    assert found is not None
    return found


def five(folder: Path, batch: int = 10, **options) -> Path:
    """A build of five workers and three servers."""
    nodes = "{worker: {count: 5}, ps: {count: 3}}"
    spec = folder / "five.yaml"
    spec.write_text(two_layers(nodes=nodes, batch=batch))
    placer.compile(spec, folder / "build", **options)
    return folder / "build"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return five(tmp_path_factory.mktemp("elastic"))


@pytest.mark.parametrize(
    ("least", "says"),
    [
        ("worker", "'worker' is not KIND=N, as in worker=2,ps=1"),
        ("worker=2,worker=3", "'worker' is repeated"),
        ("worker=0", "must be a whole number from 1, not 0"),
        ({"worker": 2.0}, "must be a whole number from 1, not 2.0"),
        ({"worker": True}, "must be a whole number from 1, not True"),
        ({}, "'elastic' is empty"),
        (2, "must be a dict or a text, not 2"),
        ("wrker=2", "did you mean 'worker'?"),
        ("worker=6", "needs at least 6 workers, but the build has 5"),
        ("worker=5,ps=3", "has no effect"),
        ("worker=4", "cannot go down to worker=4: "),
    ],
)
def test_a_smallest_number_that_does_not_fit_is_refused(build, least, says):
    with pytest.raises(PlacerError) as error:
        elastic_of(build, least)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"restarts": 0}, "needs 'restarts' (--restarts N)"),
        ({"machines": OnEngine("ray")}, "cannot be used with ray"),
        ({"in_process": True}, "cannot be used with in-process nodes"),
    ],
)
def test_options_that_do_not_fit_are_refused(build, options, says):
    with pytest.raises(PlacerError) as error:
        elastic_of(build, "worker=2", **options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("digits_async.yaml", "asynchronous and local updates depend on"),
        ("digits_geo.yaml", "asynchronous and local updates depend on"),
        ("digits_diloco.yaml", "asynchronous and local updates depend on"),
        ("digits_backup.yaml", "backup workers depend on"),
        ("mlp_pipeline.yaml", "cannot go down to worker=1"),
    ],
)
def test_a_model_whose_results_would_differ_is_refused(spec, says, tmp_path):
    placer.compile(SPECS / spec, tmp_path / "build")
    with pytest.raises(PlacerError) as error:
        elastic_of(tmp_path / "build", "worker=1")
    assert says in str(error.value)


def test_a_computation_of_the_own_rows_of_workers_is_refused(build, tmp_path):
    plan = msgspec.structs.replace(read_plan(build), parts={"block": 5})
    with pytest.raises(PlacerError, match=r"'block' computes .* \(batch: replica\)"):
        elastic_of(build, "worker=2", plan=plan)
    spec = tmp_path / "norm.yaml"
    norm = "  - {name: n, op: batch_norm, in: h, scope: replica, place: /node:worker}\n"
    spec.write_text(two_layers(extra=norm))
    placer.compile(spec, tmp_path / "norm")
    with pytest.raises(PlacerError, match=r"own rows \(scope: replica\)"):
        elastic_of(tmp_path / "norm", "worker=1")


def test_the_spec_must_give_the_present_build(tmp_path):
    build = five(tmp_path)
    elastic = elastic_of(build, "worker=2")
    spec = tmp_path / "five.yaml"
    spec.write_text(spec.read_text().replace("learning_rate: 0.1", "learning_rate: 1"))
    with pytest.raises(PlacerError, match="has changed since it was compiled"):
        elastic.shrink({"worker:0"}, tmp_path)
    with pytest.raises(PlacerError) as error:
        elastic_of(build, "worker=2")
    assert "has changed since it was compiled" in str(error.value)
    spec.unlink()
    with pytest.raises(PlacerError, match=r"cannot read .*five.yaml"):
        elastic_of(build, "worker=2")
    sources = msgspec.structs.replace(read_sources(build), arguments=None)
    (build / SOURCES).write_bytes(sources_to_json(sources))
    with pytest.raises(PlacerError, match="does not record how"):
        elastic_of(build, "worker=2")


def test_the_arguments_of_a_build_are_recorded(tmp_path, monkeypatch):
    spec = f"{SPECS / 'digits.py'}:build"
    placer.compile(
        spec,
        tmp_path / "build",
        nodes={"worker": 4},
        overrides={"train.epochs": 3},
        outputs=["logits"],
    )
    monkeypatch.chdir(tmp_path)
    elastic = elastic_of(Path("build"), "worker=2")
    assert elastic.spec == spec
    elastic.shrink({"worker:3", "worker:0"}, tmp_path)
    assert counts_of(elastic.plan) == {"worker": 2, "ps": 2}
    assert [each.name for each in elastic.plan.outputs] == ["logits"]
    assert elastic.plan.settings.train.epochs == 3
    with pytest.raises(PlacerError, match=r"compile FILE\.py:FUNCTION"):
        placer.train(_program(), out=tmp_path / "run", restarts=1, elastic="worker=1")
    assert not (tmp_path / "run").exists()


def _program() -> placer.Program:
    from placer.compiler.frontend.python.read import run_builder

    return run_builder(f"{SPECS / 'digits.py'}:build")


@pytest.mark.parametrize(
    ("lost", "least", "left"),
    [
        # Ten rows cannot be divided by four and three workers.
        ({"worker:4"}, "worker=1", {"worker": 2, "ps": 3}),
        ({"ps:1"}, "worker=1,ps=1", {"worker": 5, "ps": 2}),
        ({"worker:0", "ps:1", "ps:2"}, "worker=2,ps=1", {"worker": 2, "ps": 1}),
        ({"worker:1", "worker:2"}, "worker=5,ps=1", "3 of 5 workers are left, and it"),
        ({"ps:0"}, "worker=2", "2 of 3 servers are left, and it needs 3"),
    ],
)
def test_the_largest_numbers_that_can_be_compiled_are_chosen(
    build, tmp_path, lost, least, left
):
    elastic = elastic_of(build, least, folder=lambda: None)
    if isinstance(left, str):
        with pytest.raises(PlacerError, match=left):
            elastic.shrink(lost, tmp_path)
        return
    elastic.shrink(lost, tmp_path)
    assert elastic.build == tmp_path / "build-2"
    assert counts_of(read_plan(elastic.build)) == left
    assert elastic.plan.control == "worker:0"


def test_the_nodes_keep_the_addresses_that_are_left(build, tmp_path):
    names = [*read_plan(build).processes]
    addresses = {name: f"10.0.0.{i}:{4000 + i}" for i, name in enumerate(names)}
    addresses["worker:3"] = "[fd00::2]:4711"
    lost = {"worker:0", "ps:1", "worker:2", "worker:4"}
    elastic = elastic_of(build, "worker=2,ps=1")
    elastic.shrink(lost, tmp_path)
    left = hosts_left(elastic.plan, addresses, lost)
    assert left == {
        "worker:0": addresses["worker:1"],
        "worker:1": addresses["worker:3"],
        "ps:0": addresses["ps:0"],
        "ps:1": addresses["ps:2"],
    }
    write_hosts(tmp_path / "hosts.yaml", left, ["host-d"])
    listed = read_hosts(tmp_path / "hosts.yaml", [*left])
    assert (listed.addresses, [*listed.spares]) == (left, ["host-d"])


def trained(wait: float | None) -> Restarts:
    """The restarts of a run after step 5, when worker:1 is lost."""
    restarts = Restarts(
        1, "worker:0", lambda child, n: child, 60.0, compares=True, absent=Absent(wait)
    )
    for event in (Start(1, 9, 3), Step(5, 1, {"loss": 0.5})):
        assert list(restarts.pass_on(event)) == [event]
    restarts.fail(Failure("worker:1", "worker:1 was killed", first_hand=True))
    return restarts


def test_a_node_is_given_up_that_does_not_come_back(monkeypatch):
    now = 100.0
    monkeypatch.setattr("placer.launcher.absent.time.monotonic", lambda: now)
    restarts = trained(10.0)
    failure = Failure("ps:0", "ps:0 was killed", first_hand=True)
    now = 105.0
    assert restarts.note_exit("ps:0", failure, joined=True) is None
    assert not [*restarts.overdue()]
    [*restarts.pass_on(State("worker:1", "running", 5))]  # a report that is late
    now = 110.0
    (late,) = restarts.overdue()
    restarts.fail(Failure("worker:0", "worker:0 failed: it has waited", True))
    assert restarts.failing.texts == ["worker:1 was killed"]
    assert late.text == "worker:1 has not come back within 10 s"
    assert restarts.absent.lost == {"worker:1": "has not come back within 10 s"}
    [*restarts.pass_on(State("ps:0", "comparing rows"))]
    now = 120.0
    assert not [*restarts.overdue()]


def test_the_absent_nodes_of_a_machine_are_given_up_together():
    absent = Absent(10.0, {"worker:1": "has gone"})
    for node in ("ps:1", "ps:0.1", "worker:2"):
        absent.add(node)
    hosts = {
        "worker:0": "b",
        "worker:1": "c",
        "worker:2": "d",
        "ps:0": "c",
        "ps:1": "c",
        "ps:2": "c",
    }
    children = [SimpleNamespace(node=node, host=host) for node, host in hosts.items()]
    absent.note(State("ps:1", "loading a checkpoint"))
    lost = absent.lost_of(children)
    assert [*lost.items()] == [("worker:1", "has gone"), ("ps:0", "has gone")]
    local = [SimpleNamespace(node=node, host="") for node in hosts]
    assert absent.lost_of(local) == {"worker:1": "has gone"}


def test_a_node_is_given_up_only_after_the_run_has_trained():
    failure = Failure("ps:0", "ps:0 was killed", first_hand=True)
    restarts = Restarts(
        0, "worker:0", lambda child, n: child, 60, True, absent=Absent(9)
    )
    final = restarts.note_exit("ps:0", failure, joined=False)
    assert final is not None
    assert not restarts.absent.lost
    for wait in (None, 9.0):
        restarts = trained(wait)
        restarts.limit = 0
        assert restarts.note_exit("ps:0", failure, joined=False) is not None
        lost = {"ps:0": "has failed 1 time before it joined"} if wait else {}
        assert restarts.absent.lost == lost


def test_repeated_steps_of_fewer_nodes_are_hidden_and_not_compared():
    restarts = trained(9.0)
    assert restarts.next_attempt == 2
    fewer = "the run goes on with 1 of 2 workers"
    restarts.continue_with("worker:0", fewer, lambda child, attempt: child)
    told, recovered = restarts.pass_on(Start(5, 9, 3, attempt=2))
    assert isinstance(told, NodeWarning)
    assert (recovered.attempt, recovered.step, recovered.again) == (2, 4, 1)
    assert recovered.what == f"worker:1 was killed; {fewer}"
    assert not [*restarts.pass_on(Step(5, 1, {"loss": 0.25}))]
    (passed,) = restarts.pass_on(Step(6, 1, {"loss": 0.2}))
    assert passed.step == 6
