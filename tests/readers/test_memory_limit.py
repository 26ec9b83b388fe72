"""How much memory is left, in a container too."""

from placer.readers import memory


def test_a_cgroup_leaves_its_limit_less_what_cannot_be_freed(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert memory._of_cgroup(tmp_path) == [450]
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_cgroup(tmp_path) == []
    assert memory._of_cgroup(tmp_path / "none") == []


def test_the_smaller_of_the_machine_and_the_cgroup_is_available(monkeypatch):
    monkeypatch.setattr(memory, "_of_cgroup", lambda folder: [])
    whole = memory.available()
    assert whole > 0
    monkeypatch.setattr(memory, "_of_machine", lambda: 5000)
    monkeypatch.setattr(memory, "_of_cgroup", lambda folder: [4000])
    assert memory.available() in (4000, 5000)  # 5000 without cgroups of version 2
