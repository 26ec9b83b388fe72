"""R1: placement never changes the mathematics, for drawn models and placements."""

import re
import tempfile
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings
from support.drawn.graphs import Drawn, models
from support.plain.graph import flat
from support.plain.training import hinges_on_rounding
from support.run_ways import check_alike, run_build, run_plain, run_three_ways, write

from placer import ops
from placer.config import optimizers, schedules
from placer.errors import GraphError
from placer.ops.composites import COMPOSITES

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


pytestmark = pytest.mark.usefixtures("in_float64")


def holds(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, initial = Path(name), drawn.initial()
        rows = {which: drawn.rows(which) for which in ("train", "eval")}
        file = write(drawn.spec, rows, folder)
        plain = run_plain(file, rows, initial)
        # Where training runs away, differences of rounding do too.
        numbers = [value for line in plain.history for value in line.values()]
        assume(not np.any(np.abs(numbers) > 1e3))
        assume(all(np.all(np.isfinite(g)) for g in plain.gradients[-1].values()))
        assume(not any(hinges_on_rounding(drawn.spec, g) for g in plain.gradients))
        try:
            traces = {
                how: run_build(file, folder / how, initial, single_process=one)
                for how, one in {"placed": False, "alone": True}.items()
            }
        except GraphError as error:
            idle = re.search("trains nothing.* depend on '(.*?)'", error.message)
            if idle is None:
                raise
            assert idle.group(1) not in plain.gradients[-1]
            return
        check_alike({"plain": plain, **traces})


@given(models())
@settings(SETTINGS, max_examples=6, derandomize=True)
def test_a_placed_model_trains_as_plain_jax_does(drawn):
    holds(drawn)


@pytest.mark.parametrize(
    "file",
    sorted(Path(__file__).parent.glob("drawn_before/*.yaml")),
    ids=lambda f: f.stem,
)
def test_a_model_that_was_wrong_before_trains_as_plain_jax_does(file, tmp_path):
    """Each says in its first line what was wrong."""
    found = yaml.safe_load(file.read_text())
    shapes = {name: tuple(shape) for name, shape in found.pop("shapes").items()}
    drawn = Drawn(shapes=shapes, **found)
    rows = {which: drawn.rows(which) for which in ("train", "eval")}
    check_alike(run_three_ways(drawn.spec, rows, drawn.initial(), tmp_path))


class Enough(Exception):  # noqa: N818 - no error
    """All has been drawn that is looked for."""


@pytest.mark.slow
def test_models_are_drawn_of_every_op_and_trained_in_every_way():
    declared = {kind for kind in ops.kinds() if not ops.find(kind).inserted}
    composites = {composite.kind for composite in COMPOSITES}
    every = declared | composites | {"call", "parameter"}
    ways = {*optimizers.names(), *schedules.FORMS, "global_norm", "norm", "value"}
    ways |= {"remat", "decay", "trainable", "match", "microbatches", "emulate"}
    kinds, written = set(), set()

    @given(models())
    @settings(SETTINGS, max_examples=1600, derandomize=True, phases=[Phase.generate])
    def draw(drawn: Drawn) -> None:
        kinds.update(entry["op"] for entry in flat(drawn.spec["graph"]))
        written.update(re.findall(r"\w+", str(drawn.spec)))
        if kinds >= every and written >= ways:
            raise Enough

    with suppress(Enough):
        draw()
    assert kinds == every
    assert written >= ways


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))  # so that several processes share them
@given(models())
@settings(SETTINGS, max_examples=50)
def test_many_placed_models_train_as_plain_jax_does(part, drawn):
    jax.clear_caches()  # of programs that will not run again
    holds(drawn)
