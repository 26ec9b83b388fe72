"""The memory that is left, on the machine and in a container."""

import pytest

from placer.system.memory import limit


def test_a_cgroup_leaves_its_limit_without_unfreeable_memory(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert limit._of_cgroup(tmp_path) == [450]
    (tmp_path / "memory.max").write_text("max\n")
    assert limit._of_cgroup(tmp_path) == []
    assert limit._of_cgroup(tmp_path / "none") == []


def test_the_machine_has_memory():
    assert limit.available_nbytes() > 0


@pytest.mark.parametrize(
    ("machine", "inner", "outer", "left"),
    [
        (5000, 4000, 4500, 4000),
        (5000, 4000, 3000, 3000),
        (2000, 4000, 4500, 2000),
        (5000, "max", 4500, 4500),
        (5000, "max", "max", 5000),
    ],
)
def test_the_minimum_of_machine_and_cgroups_is_available(
    machine, inner, outer, left, tmp_path, monkeypatch
):
    own = tmp_path / "outer" / "own"
    own.mkdir(parents=True)
    for folder, maximum in ((own, inner), (own.parent, outer)):
        (folder / "memory.max").write_text(f"{maximum}\n")
        (folder / "memory.current").write_text("0\n")
        (folder / "memory.stat").write_text("")
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/outer/own\n")
    monkeypatch.setattr(limit, "_OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(limit, "_CGROUPS", tmp_path)
    monkeypatch.setattr(limit, "_of_machine", lambda: machine)
    assert limit.available_nbytes() == left
