"""Parameters that are larger than the largest message are gathered."""

import threading

import numpy as np

import placer
from placer.channel.in_process import memory_channels
from placer.plan.plan import read_plan
from placer.runtime.control.execution import Execution
from placer.runtime.control.options import Options
from placer.runtime.exchange.devices import Devices
from placer.runtime.saving import gathered_parameters
from placer.runtime.training_loop.make_dense_tables import make_tables
from placer.system.resources import find_file


def test_a_block_larger_than_a_message_is_sent_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(gathered_parameters, "CHUNK", 100)
    placer.compile(find_file("specs/digits.yaml"), tmp_path / "build")
    plan = read_plan(tmp_path / "build")
    names = [node.name for node in plan.nodes]
    channels = memory_channels(names, max_message=4 * 100, deadline=60)
    runs = [
        Execution(plan, tmp_path / "build", n, channels[n.name], Options(), print)
        for n in plan.nodes
    ]
    tables = {run.me.name: make_tables(run, None, Devices({})) for run in runs}
    gathered = {}

    def gather(node):
        gathered[node] = gathered_parameters.gather_parameters(
            plan, channels[node], tables[node]
        )

    threads = [threading.Thread(target=gather, args=(node,)) for node in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saved = gathered.pop(plan.control)
    assert not any(gathered.values())
    assert set(saved) == {parameter.name for parameter in plan.parameters}
    for parameter in plan.parameters:
        assert saved[parameter.name].shape == parameter.shape
        blocks = [tables[n][t].values()[i].ravel() for n, t, i in parameter.holders]
        np.testing.assert_array_equal(
            saved[parameter.name].ravel(), np.concatenate(blocks)
        )
