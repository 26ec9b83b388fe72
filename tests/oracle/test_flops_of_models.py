"""R5 for every op: what all nodes compute is what one process computes, once."""

from pathlib import Path

import pytest
import yaml
from support.listed_models import MODELS, PLACEMENTS, spec_of
from support.run_ways import write

from placer.compiler import compile


def flops(spec, folder: Path, *, single_process: bool = False) -> tuple[int, int]:
    """Of the model, and what is computed again, over all programs."""
    folder.mkdir()
    file = write(spec, {}, folder)
    plan = compile(file, folder / "build", single_process=single_process)
    return (
        sum(node.flops for node in plan.nodes),
        sum(node.replicated_flops for node in plan.nodes),
    )


def without_remat(spec):
    """The spec with its blocks as any others."""
    graph = [
        {k: v for k, v in entry.items() if k != "remat"} for entry in spec["graph"]
    ]
    return {**spec, "graph": graph}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("model", MODELS)
def test_the_programs_add_up_to_one_process(model, placement, tmp_path):
    spec = spec_of(MODELS[model])
    alone, _ = flops(spec, tmp_path / "alone", single_process=True)
    placed, _ = flops(PLACEMENTS[placement](spec), tmp_path / "placed")
    assert placed == alone > 0


@pytest.mark.parametrize("model", MODELS)
def test_what_backward_computes_again_is_listed_apart(model, tmp_path):
    spec = spec_of(MODELS[model])
    assert ("remat" in yaml.dump(spec)) == (without_remat(spec) != spec)
    with_blocks = flops(spec, tmp_path / "again", single_process=True)
    plain = flops(without_remat(spec), tmp_path / "once", single_process=True)
    assert with_blocks[0] == plain[0]
    assert plain[1] == 0
    assert (with_blocks[1] > 0) == (without_remat(spec) != spec)
