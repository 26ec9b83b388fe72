"""R1 and R2, for random models and placements: placement never changes the mathematics,
and the same spec gives the same bits."""

import re
import tempfile
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings
from support.drawn.graphs import DrawnModel, models
from support.marks import MAY_PAIR_ROWS, slow_but
from support.plain.graph import flatten_ops
from support.plain.training import depends_on_rounding
from support.run_ways import (
    check_all_same,
    run_build,
    run_plain,
    run_three_ways,
    write_spec,
)

from placer import ops
from placer.errors import GraphError
from placer.ops.composites import COMPOSITES
from placer.plan.settings.training import optimizers, schedules

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


WAYS = {"placed": False, "again": False, "alone": True}
"""The runs of a model, and whether each is of one process."""
pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    MAY_PAIR_ROWS,
]


def check_placement(drawn: DrawnModel) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, initial = Path(name), drawn.initial()
        rows = {which: drawn.rows(which) for which in ("train", "eval")}
        file = write_spec(drawn.spec, rows, folder)
        plain = run_plain(file, rows, initial)
        # If training diverges, rounding errors grow too.
        numbers = [value for line in plain.history for value in line.values()]
        assume(not np.any(np.abs(numbers) > 1e3))
        assume(all(np.all(np.isfinite(g)) for g in plain.gradients[-1].values()))
        assume(not any(depends_on_rounding(drawn.spec, g) for g in plain.gradients))
        try:
            traces = {
                how: run_build(file, folder / how, initial, single_process=one)
                for how, one in WAYS.items()
            }
        except GraphError as error:
            idle = re.search("trains nothing.* depend on '(.*?)'", error.message)
            if idle is None:
                raise
            assert idle.group(1) not in plain.gradients[-1]
            return
        again = traces.pop("again")
        check_all_same({"plain": plain, **traces})
        np.testing.assert_equal(vars(again), vars(traces["placed"]))
        assert contents(folder / "again") == contents(folder / "placed")


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the files of a build."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@given(models())
@settings(SETTINGS, max_examples=2, derandomize=True)
def test_a_placed_model_trains_like_plain_jax(drawn):
    check_placement(drawn)


BEFORE = Path(__file__).parent / "drawn_before"


@pytest.mark.parametrize(
    "name",
    slow_but(["a_block_that_does_nothing"], sorted(f.stem for f in BEFORE.iterdir())),
)
def test_a_model_that_once_failed_trains_like_plain_jax(name, tmp_path):
    """The first line of each file says what was wrong."""
    fields = yaml.safe_load((BEFORE / f"{name}.yaml").read_text())
    shapes = {name: tuple(shape) for name, shape in fields.pop("shapes").items()}
    drawn = DrawnModel(shapes=shapes, **fields)
    rows = {which: drawn.rows(which) for which in ("train", "eval")}
    check_all_same(run_three_ways(drawn.spec, rows, drawn.initial(), tmp_path))


class AllDrawn(Exception):  # noqa: N818 - not an error
    """Every op and every option has been drawn."""


@pytest.mark.slow
def test_drawn_models_use_every_op_and_every_training_option():
    declared = {kind for kind in ops.kinds() if not ops.find(kind).inserted}
    composites = {composite.kind for composite in COMPOSITES}
    every = declared | composites | {"call", "parameter"}
    options = {*optimizers.RULES, *schedules.FORMS, "global_norm", "norm", "value"}
    options |= {"shard_state", "all_reduce", "sum", "sync", "max_staleness"}
    options |= {"remat", "decay", "trainable", "match", "microbatches", "emulate"}
    options |= {"bucket_cap_mb", "threads"}
    kinds, written = set(), set()

    @given(models())
    @settings(SETTINGS, max_examples=1600, derandomize=True, phases=[Phase.generate])
    def draw(drawn: DrawnModel) -> None:
        kinds.update(entry["op"] for entry in flatten_ops(drawn.spec["graph"]))
        written.update(re.findall(r"\w+", str(drawn.spec)))
        if kinds >= every and written >= options:
            raise AllDrawn

    with suppress(AllDrawn):
        draw()
    assert kinds == every
    assert written >= options


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))  # split over several processes
@given(models())
@settings(SETTINGS, max_examples=50)
def test_many_placed_models_train_like_plain_jax(part, drawn):
    jax.clear_caches()  # compiled programs that do not run again
    check_placement(drawn)
