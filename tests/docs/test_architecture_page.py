"""docs/about/architecture.md says what is there."""

import re
from pathlib import Path

import msgspec
import pytest

from placer.compiler.driver import lower_model
from placer.compiler.frontend import load
from placer.compiler.graph.structural_ops import CONVERSIONS
from placer.compiler.graph.text import parse_graph, print_graph
from placer.compiler.passes import PASSES
from placer.plan import plan
from placer.system.resources import find_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/about/architecture.md").read_text(encoding="utf-8")


def table(heading):
    """The rows of the table whose first heading this is, cell by cell."""
    lines = PAGE[PAGE.index(f"| {heading}") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_table_of_passes_is_the_pipeline():
    rows = table("pass |")
    assert [row[0].strip("`") for row in rows] == list(PASSES)
    for row in rows:
        assert (ROOT / "placer/compiler/passes" / row[1].strip("`")).is_file()


def test_the_table_of_conversions_is_the_one_in_the_code():
    found = {}
    for row in table("to ↓ from →"):
        need = row[0].strip("`")
        for have, cell in zip("RSPF", row[1:], strict=True):
            if cell:
                found[have, need] = cell.split("`")[1]
    assert found == CONVERSIONS


def test_the_graph_is_that_of_digits():
    block = re.search(r"```\n(graph @digits.*?)```", PAGE, re.S).group(1)
    step, *_ = lower_model(load(find_file("specs/digits.yaml")))
    whole = print_graph(step).splitlines()
    shown = block.splitlines()
    assert [line for line in whole if line in shown] == shown
    assert len(parse_graph(block).ops) == len(shown) - 2


STRUCTS = (
    *(plan.Plan, plan.NodePlan, plan.Edge, plan.EdgeValue, plan.NodePhase, plan.Table),
    *(plan.Parameter, plan.RowSource, plan.Column, plan.Choice),
)


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_of_the_plan_is_named(struct):
    said = re.findall(r"`(\w+)`", PAGE[PAGE.index("| of `Plan`") :].split("\n\n")[0])
    for field in msgspec.structs.fields(struct):
        assert field.name in said


def tree():
    """The paths of the tree, by its indentation."""
    block = PAGE[PAGE.index("```\nplacer/") :].split("```")[1]
    folders, paths = [], []
    for line in block.strip().splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name.rstrip("/")]
        paths.append("/".join(folders))
    return paths


def test_the_tree_has_each_package():
    paths = tree()
    for path in paths:
        assert (ROOT / path).exists(), path
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "placer").rglob("__init__.py")
    }
    topics = {path for path in packages if path.startswith("placer/ops/")}
    assert packages - topics <= set(paths)


@pytest.mark.parametrize(
    ("heading", "packages", "least"),
    [
        ("thread |", ("runtime", "channel", "checkpoint"), 16),
        ("thread of a launcher |", ("launcher",), 10),
    ],
)
def test_the_tables_of_threads_have_each_thread(heading, packages, least):
    begins = re.compile(r"\b(?:Thread|Timer|begin|Worker|ThreadPoolExecutor)\(")
    names = re.compile(r"f?\"((?:placer [a-z ]*[a-z]|read ahead))(?=[ \"])")
    listed = " ".join(row[0] for row in table(heading))
    found = set()
    for package in packages:
        for path in (ROOT / "placer" / package).rglob("*.py"):
            text = path.read_text()
            found |= {*names.findall(text)} if begins.search(text) else set()
    assert len(found) >= least
    for name in found:
        assert name in listed, name


def test_all_threads_of_a_launcher_have_an_owner():
    for path in (ROOT / "placer/launcher").rglob("*.py"):
        assert "Thread(" not in path.read_text(), path


@pytest.mark.parametrize("page", ["docs/about/architecture.md", "CONTRIBUTING.md"])
def test_every_file_and_module_that_a_page_names_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    form = r"`((?:placer|grammar|specs|tests|tools)/[\w/.-]*)`"
    paths = re.findall(form, text)
    assert len(paths) > 20
    for path in paths:
        assert (ROOT / path).exists(), path
