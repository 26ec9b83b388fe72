"""The reaction of a run to the end of ssh: its node starts again, moves, or ends the run."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.free_addresses import eventually

from placer.launcher.machines import CONNECT_TIMEOUT, Machines, Reaction
from placer.launcher.node_process import SSH_FAILED
from placer.launcher.remote import ssh_command
from placer.launcher.spares import SpareChecks
from placer.launcher.watched_node import WatchedNode

ADDRESSES = {
    "worker:0": "a:10",
    "worker:1": "b:11",
    "ps:0": "[fd00::2]:12",
    "ps:1": "b:13",
}
SILENT = "Timeout, server b not responding.\r\n"
REFUSED = "ssh: connect to host b port 22: Connection refused\n"


class Ended(WatchedNode):
    """An ssh process that has ended."""

    def kill(self) -> None: ...
    def order_stop(self) -> None: ...
    def order_step(self) -> bool:
        return True

    def abandon(self) -> None: ...
    def reap(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def ended(tmp_path: Path) -> Any:
    def end(
        said: str = REFUSED,
        *,
        spoken: bool = False,
        status: int = SSH_FAILED,
        host: str = "b",
        node: str = "ps:1",
    ) -> Ended:
        log = tmp_path / "log"
        log.write_text(f"ready\n{said}")
        child = Ended(node=node, log=log, report_fd=-1, pidfd=-1, host=host)
        child.by_ssh, child.exit_status, child.has_spoken = True, status, spoken
        return child

    return end


def machines(*spares: str, join_timeout: float = 600.0) -> Machines:
    checks = SpareChecks([], "", b"", "a", [])
    return Machines(dict(ADDRESSES), [*spares], join_timeout, checks)


def test_all_nodes_of_a_lost_machine_move_to_the_first_spare_with_their_ports(ended):
    placed = machines("fd00::9", "d")
    reaction = placed.react(ended(), {}, has_trained=True)
    assert reaction == Reaction(
        warning="worker:1 and ps:1 move from b to the spare fd00::9: ssh failed: "
        + REFUSED.strip(),
        moved={"worker:1": "[fd00::9]:11", "ps:1": "[fd00::9]:13"},
    )
    assert placed.addresses == ADDRESSES | reaction.moved
    # The launcher has ended the other process on the machine.
    other = ended("", spoken=True, status=-9, node="worker:1")
    assert placed.react(other, {}, has_trained=True) == Reaction()
    # The spare is lost as well.
    reaction = placed.react(ended(host="fd00::9"), {}, has_trained=True)
    assert reaction is not None
    assert reaction.moved == {"worker:1": "d:11", "ps:1": "d:13"}


@pytest.mark.parametrize("said", [SILENT, "Connection reset by peer\n"])
def test_a_machine_that_was_silent_is_lost_without_another_attempt(ended, said):
    placed = machines("d")
    broken = ended(said, spoken=True)
    reaction = placed.react(broken, {"ps:1": time.monotonic()}, has_trained=True)
    assert (reaction is not None) == (said == SILENT)
    if reaction is not None:
        assert reaction.is_failure
        assert reaction.warning == "worker:1 and ps:1 move from b to the spare d"
    without = machines().react(broken, {}, has_trained=True)
    assert without is None  # the node starts again on its machine


def test_a_machine_with_another_node_that_is_heard_is_not_lost(ended):
    now = time.monotonic()
    for heard, moves in (({"worker:1": now}, False), ({"worker:1": now - 9}, True)):
        for child in (ended(), ended(SILENT, spoken=True)):
            reaction = machines("d").react(child, heard, has_trained=True)
            assert bool(reaction and reaction.moved) == moves


def test_a_node_whose_process_has_failed_starts_again_on_its_machine(ended):
    for status in (1, 137, 127):
        child = ended("error", spoken=True, status=status)
        assert machines("d").react(child, {}, has_trained=True) is None


def test_ssh_that_fails_at_the_start_ends_the_run_unless_there_is_a_spare(ended):
    reaction = machines().react(ended(), {}, has_trained=False)
    assert reaction is not None
    assert (reaction.ends_run, reaction.why) == (True, "")
    # The other nodes of the machine move as well.
    heard = {"worker:1": time.monotonic()}
    reaction = machines("d").react(ended(), heard, has_trained=False)
    assert reaction is not None
    assert reaction.moved.keys() == {"worker:1", "ps:1"}


@pytest.mark.parametrize("ends", ["exit 3", "echo '{}'"])
def test_the_control_node_waits_for_the_checks_of_spares(ends):
    command = ["sh", "-c", f"read go; {ends}"]
    with SpareChecks(command, "", b"", "a", ["d"]) as checks:
        placed = Machines(dict(ADDRESSES), ["d"], 600.0, checks)
        held: list[bytes] = []
        child: Any = SimpleNamespace(deliver=held.append)
        assert not checks.is_done
        placed.hold(child, b"build")
        news: list[tuple[str, bool]] = []

        def is_checked() -> bool:
            assert checks.is_done or not held
            news.extend(placed.news())
            return checks.is_done

        eventually(is_checked)
    reason = "the spare machine d cannot be used: its check ended with exit status 3"
    fails = ends == "exit 3"
    assert (news, held) == (([(reason, True)], []) if fails else ([], [b"build"]))


def test_without_a_spare_ssh_is_tried_again_until_the_join_timeout(ended):
    placed = machines(join_timeout=0.05)
    assert placed.connect_timeout("ps:1") == CONNECT_TIMEOUT
    assert placed.react(ended(spoken=True), {}, has_trained=True) is None
    assert placed.connect_timeout("ps:1") == 1
    tries: list[Reaction] = []
    while not tries or not tries[-1].ends_run:
        reaction = placed.react(ended(), {}, has_trained=True)
        assert reaction is not None
        assert reaction.pause <= 0.05
        tries.append(reaction)
        time.sleep(reaction.pause)
    assert tries[0].warning == f"ssh to b failed, and is tried again: {REFUSED.strip()}"
    assert {each.warning for each in tries[1:]} <= {""}
    text = "\n  b has not come back within 0.05 s (--join-timeout)"
    assert tries[-1].why == text


@pytest.mark.parametrize("lost_after", [0.5, 4, 7, 60, 601.5])
def test_ssh_ends_after_lost_after_but_not_before(lost_after):
    words = ssh_command("ssh -4", lost_after)
    options = dict(each.split("=") for each in words if "=" in each)
    interval = int(options["ServerAliveInterval"])
    # ssh counts whole seconds, and ends when one more message is due.
    total = interval * (int(options["ServerAliveCountMax"]) + 1)
    assert lost_after + 1 <= total
    assert total <= max(math.ceil(lost_after) + 2 * interval, 2)
