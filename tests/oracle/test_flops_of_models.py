"""R5 for every op: the FLOPs of all nodes add up to those of one process."""

from pathlib import Path

import pytest
import yaml
from support.listed_models import MODELS, PLACEMENTS, spec_of
from support.marks import slow_but
from support.run_ways import write_spec

from placer.compiler.driver import compile


def flops(spec, folder: Path, *, single_process: bool = False) -> tuple[int, int]:
    """Return the FLOPs of the model and the repeated FLOPs, over all programs."""
    folder.mkdir()
    file = write_spec(spec, {}, folder)
    plan = compile(file, folder / "build", single_process=single_process)
    return (
        sum(node.flops for node in plan.nodes),
        sum(node.replicated_flops for node in plan.nodes),
    )


def without_remat(spec):
    """Return the spec without `remat`."""
    graph = [
        {k: v for k, v in entry.items() if k != "remat"} for entry in spec["graph"]
    ]
    return {**spec, "graph": graph}


@pytest.mark.parametrize("model", slow_but(["numbers", "rows"], MODELS))
def test_the_programs_add_up_to_one_process(model, tmp_path):
    spec = spec_of(MODELS[model])
    alone, _ = flops(spec, tmp_path / "alone", single_process=True)
    placements = enumerate(PLACEMENTS.values())
    placed = [flops(place(spec), tmp_path / str(i))[0] for i, place in placements]
    assert placed == [alone] * len(PLACEMENTS)
    assert alone > 0


@pytest.mark.parametrize("model", slow_but(["numbers", "rows"], MODELS))
def test_flops_of_recomputation_are_counted_separately(model, tmp_path):
    spec = spec_of(MODELS[model])
    assert ("remat" in yaml.dump(spec)) == (without_remat(spec) != spec)
    with_remat = flops(spec, tmp_path / "again", single_process=True)
    plain = flops(without_remat(spec), tmp_path / "once", single_process=True)
    assert with_remat[0] == plain[0]
    assert plain[1] == 0
    assert (with_remat[1] > 0) == (without_remat(spec) != spec)
