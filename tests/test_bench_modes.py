"""The specs of bench/modes.py compile, so that it does not fail after minutes."""

import runpy

import pytest

from placer.system.resources import find_file

bench = runpy.run_path(find_file("bench/mode_builds.py"))
BUILDS = bench["BUILDS"]


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("specs")
    bench["copy_specs"](folder)
    return folder


@pytest.mark.parametrize("name", BUILDS)
def test_a_case_of_the_bench_compiles(name, specs, tmp_path):
    BUILDS[name].compile(specs, tmp_path / "build")
    assert (tmp_path / "build/plan.json").is_file()
