"""Compiling is linear in the ops of a model: bench/compile_time.py has the seconds."""

import cProfile
import runpy

from placer.compiler import compile as compile_model
from placer.files import find
from placer.spec import load

spec = runpy.run_path(find("bench/compile_time.py"))["spec"]


def calls_to_compile(folder, ops):
    """Python's calls, which are the same in every run, as seconds are not."""
    file = folder / f"chain{ops}.yaml"
    file.write_text(spec(ops))
    with cProfile.Profile() as profile:
        compile_model(load(file), folder / f"build{ops}")
    return sum(entry.callcount for entry in profile.getstats())


def test_four_times_the_ops_take_four_times_the_calls(tmp_path):
    calls_to_compile(tmp_path, 10)  # imports are made, patterns compiled
    few, many = (calls_to_compile(tmp_path, ops) for ops in (500, 2000))
    assert many < 4.2 * few
