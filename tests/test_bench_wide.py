"""What bench/wide.py reads and measures by itself."""

import itertools
import os
import runpy
import time

import numpy as np

from placer.system.resources import find_file

CpuTimes = runpy.run_path(find_file("bench/cpu_times.py"))["CpuTimes"]
write_rows = runpy.run_path(find_file("bench/wide_rows.py"))["write_rows"]


def test_rows_have_a_key_for_each_number_and_are_always_the_same(tmp_path):
    for name in ("a.npz", "b.npz"):
        write_rows(tmp_path / name, keys=100, rows=500)
    first, second = np.load(tmp_path / "a.npz"), np.load(tmp_path / "b.npz")
    assert all((first[name] == second[name]).all() for name in first)
    number, ids = first["number"], first["ids"]
    assert number.min() >= 0
    assert number.max() < 100
    pairs = np.unique(np.stack([number.ravel(), ids.ravel()], 1), axis=0)
    assert len(pairs) == len(np.unique(number)) == len(np.unique(ids)) > 50
    assert 0.2 < first["label"].mean() < 0.8


def test_cpu_times_are_those_between_two_steps():
    steps = itertools.count()
    times = CpuTimes(lambda: next(steps))
    times.start([os.getpid()])
    until = time.process_time() + 0.2
    while time.process_time() < until or times.steps < 2:
        pass
    times.stop()
    begin, end = times.when(0), times.when(times.steps)
    (seconds,) = times.between(begin, end).seconds
    assert 0 < seconds <= 2 * (end - begin) * os.cpu_count()
