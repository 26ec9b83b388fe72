"""Every pass on small graphs, text before and text after: one idea a file in `cases`.

A file begins with the idea as a comment; `---` stands between the graphs.
"""

from pathlib import Path

import pytest

from placer.graph.text import parse_graph, print_graph
from placer.passes import SHARED, STEP
from placer.passes.evaluate import evaluate
from placer.passes.train import train
from placer.passes.verify import Stage, verify

PASSES = {name: (apply, stage) for name, apply, stage in (*SHARED, *STEP)}
PASSES["train"] = (train, Stage.PLACED)
PASSES["evaluate"] = (lambda graph: evaluate(graph, 4), Stage.PLACED)
NEEDS = {
    "differentiate": Stage.WRITTEN,
    "recompute": Stage.LAID_OUT,
    "place": Stage.DIFFERENTIATED,
    "partial_sums": Stage.PLACED,
    "slice": Stage.PLACED,
    "layout": Stage.PLACED,
    "train": Stage.PLACED,
    "evaluate": Stage.PLACED,
    "transfer": Stage.LAID_OUT,
    "microbatch": Stage.PLACED,
    "memcpy": Stage.TRANSFERRED,
    "segment": Stage.COPIED,
}
FOLDER = Path(__file__).parent / "cases"
CASES = sorted(FOLDER.glob("*/*.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_pass_gives_the_text_after(case):
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
