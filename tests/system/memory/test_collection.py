"""The garbage collector of a process of the command line begins with the first step."""

import gc
import sys

import pytest
from support.real_runs import compile_small

from placer.command import main
from placer.system.memory.collection import begin_collection

ROWS = """\
import gc


def train():
    print("while rows are read:", gc.isenabled())
    for i in range(8):
        yield {"x": [1.0, 2.0, 3.0, 4.0], "y": 5.0}
"""


@pytest.fixture
def _unfrozen():
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("_unfrozen")
def test_nothing_is_collected_before_the_first_step(tmp_path, monkeypatch, capfd):
    build = compile_small(tmp_path, rows=ROWS)
    words = ["placer", "launch", str(build), "--in-process"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "while rows are read: False" in capfd.readouterr().out
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000


def test_the_collector_of_another_program_is_its_own():
    frozen = gc.get_freeze_count()
    gc.disable()
    try:
        begin_collection()
        assert not gc.isenabled()
        with pytest.raises(SystemExit):
            main(["--version"])
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert gc.get_freeze_count() == frozen
