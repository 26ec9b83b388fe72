"""`placer run BUILD --node auto`: which node a process is, by its surroundings."""

from __future__ import annotations

import pytest

from placer.errors import PlacerError
from placer.launcher.engines.surroundings import look_around

PROCESSES = ("worker:0", "worker:1", "worker:2", "ps:0", "ps:1")
SLURM = {  # of a real task of a heterogeneous job, Slurm 22.05
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURMD_NODENAME": "n1",
}


def test_a_name_comes_first():
    found = look_around(PROCESSES, {**SLURM, "PLACER_NODE": "ps:1"})
    assert (found.node, found.endpoints) == ("ps:1", {})


def test_a_kind_and_a_number():
    environment = {"PLACER_KIND": "worker", "PLACER_INDEX": "2"}
    assert look_around(PROCESSES, environment).node == "worker:2"


def test_a_task_of_slurm_knows_the_addresses_of_all():
    found = look_around(PROCESSES, SLURM, 5000)
    assert found.node == "worker:1"
    assert found.endpoints == {
        "worker:0": "n1:5000",
        "worker:1": "n1:5001",
        "worker:2": "n1:5002",
        "ps:0": "n2:5003",
        "ps:1": "n2:5004",
    }


def test_nodes_of_slurm_can_have_other_addresses_than_their_names():
    addresses = {"PLACER_SLURM_ADDRESSES": "n1=10.0.0.1,n2=fd00::2"}
    found = look_around(PROCESSES, {**SLURM, **addresses}, 5000)
    assert found.endpoints["worker:0"] == "10.0.0.1:5000"
    assert found.endpoints["ps:1"] == "[fd00::2]:5004"


def test_groups_of_slurm_may_be_on_machines_in_any_order():
    """Tasks are numbered group by group; hosts, with their numbers of tasks, are sorted."""
    groups = {
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2,3",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n2",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n1",
        "SLURMD_NODENAME": "n2",
    }
    found = look_around(PROCESSES, SLURM | groups, 5000)
    assert found.endpoints == {
        "worker:0": "n2:5000",
        "worker:1": "n2:5001",
        "worker:2": "n2:5002",
        "ps:0": "n1:5003",
        "ps:1": "n1:5004",
    }


def test_a_step_of_slurm_may_be_in_some_groups_only():
    groups = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n5",
    }
    found = look_around(PROCESSES, SLURM | groups, 5000)
    assert found.endpoints["ps:1"] == "n2:5004"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "PLACER_NODE, PLACER_KIND with PLACER_INDEX, and Slurm's"),
        ({"PLACER_NODE": "ps:2"}, "PLACER_NODE is 'ps:2', but this build has no such"),
        ({"PLACER_NODE": "ps:2"}, "did you mean 'ps:1'? The nodes are worker:0-2, "),
        ({"PLACER_KIND": "wroker", "PLACER_INDEX": "0"}, "did you mean 'worker'?"),
        ({"PLACER_KIND": "heter", "PLACER_INDEX": "0"}, "PLACER_KIND is 'heter'"),
        (
            {"PLACER_KIND": "worker", "PLACER_INDEX": "3"},
            "PLACER_INDEX is '3', but this build has 3 nodes of kind 'worker'",
        ),
        ({"PLACER_KIND": "worker"}, "PLACER_INDEX is ''"),
        ({"SLURM_JOB_ID": "1"}, "a batch script of Slurm, not one of its tasks"),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
            "Slurm has started 4 tasks, but this build has 5 processes",
        ),
        (
            SLURM | {"SLURMD_NODENAME": "n2"},
            "task 1 of Slurm is on n2, but SLURM_STEP_TASKS_PER_NODE says n1",
        ),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "5"}, "2 hosts"),
        (SLURM | {"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x', which is not a number"),
        ({"SLURM_PROCID": "0"}, "SLURM_STEP_NODELIST is not"),
    ],
)
def test_surroundings_that_do_not_fit_are_named(environment, message):
    with pytest.raises(PlacerError) as caught:
        look_around(PROCESSES, environment)
    assert message in str(caught.value)
