"""Every pass on small graphs: one case per file in `cases`.

A file starts with the idea of the case as a comment, followed by the graph before the
pass, `---`, and the graph after the pass.
"""

from pathlib import Path

import pytest

from placer.graph.text import parse_graph, print_graph
from placer.passes import SHARED_PASSES, STEP_PASSES
from placer.passes.evaluate import evaluate
from placer.passes.train import train
from placer.passes.verify import GraphForm, verify

PASSES = {name: (apply, stage) for name, apply, stage in (*SHARED_PASSES, *STEP_PASSES)}
PASSES["train"] = (train, GraphForm.PLACED)
PASSES["evaluate"] = (lambda graph: evaluate(graph, 4), GraphForm.PLACED)
NEEDS = {
    "differentiate": GraphForm.WRITTEN,
    "recompute": GraphForm.LAID_OUT,
    "place": GraphForm.DIFFERENTIATED,
    "partial_sums": GraphForm.PLACED,
    "slice": GraphForm.PLACED,
    "layout": GraphForm.PLACED,
    "train": GraphForm.PLACED,
    "evaluate": GraphForm.PLACED,
    "transfer": GraphForm.LAID_OUT,
    "microbatch": GraphForm.PLACED,
    "memcpy": GraphForm.TRANSFERRED,
    "segment": GraphForm.COPIED,
}
FOLDER = Path(__file__).parent / "cases"
CASES = sorted(FOLDER.glob("*/*.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_pass_returns_the_second_graph(case):
    idea, text = case.read_text(encoding="utf-8").split("\n", 1)
    assert idea.startswith("# ")
    before, after = text.split("---\n")
    graph = parse_graph(before)
    assert print_graph(graph) == before
    verify(graph, NEEDS[case.parent.name])
    apply, stage = PASSES[case.parent.name]
    result = apply(graph)
    verify(result, stage)
    assert print_graph(result) == after


def test_every_pass_has_cases():
    assert {case.parent.name for case in CASES} == set(PASSES)
