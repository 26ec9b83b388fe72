"""Every pass on small graphs: one case per file in `cases`.

A file starts with the idea of the case as a comment, followed by the graph before the
pass, `---`, and the graph after the pass.
"""

from pathlib import Path

import pytest

from placer.compiler.graph.text import parse_graph, print_graph
from placer.compiler.passes import PASSES
from placer.compiler.passes.verify import verify

FOLDER = Path(__file__).parent / "cases"
CASES = sorted(FOLDER.glob("*/*.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_pass_returns_the_second_graph(case):
    idea, text = case.read_text(encoding="utf-8").split("\n", 1)
    assert idea.startswith("# ")
    before, after = text.split("---\n")
    graph = parse_graph(before)
    assert print_graph(graph) == before
    tested = PASSES[case.parent.name]
    verify(graph, tested.needs)
    result = tested.run(graph)
    verify(result, tested.gives)
    assert print_graph(result) == after


def test_every_pass_has_cases():
    assert {case.parent.name for case in CASES} == set(PASSES)
