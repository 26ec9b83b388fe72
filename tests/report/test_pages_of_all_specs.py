"""The page of every shipped spec, in a browser, agrees with the plan and `placer explain`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner
from support.browser import needs_browser, open_browser, open_page
from support.page_layout import FAULTS, check_layout, find_parameters, open_boxes

import placer
from placer.command.report import report_command
from placer.compiler.build_or_spec import LoadedBuild, load_build
from placer.compiler.driver import compile_prediction
from placer.report.explain import BuildInfo, explain
from placer.report.page.collect import collect
from placer.report.page.facts import Details, Placement
from placer.report.page.picture import column_names
from placer.report.page.placement import drawn_graph
from placer.report.page.subject import Subject
from placer.report.page.write import page_html
from placer.report.run_files import Command, RunEnd
from placer.report.server_tables import block_bytes, item_bytes
from placer.system.resources import find_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
SPECS = Path(find_file("specs"))
OFTEN = ("digits_geo.yaml",)
"""The spec of the ordinary run. test_report_page.py opens other ones."""
PYTHON = ("digits.py:build", "flax_block.py:build", "flax_block_gpus.py:build")
NAMES = [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
    for name in (*sorted(file.name for file in SPECS.glob("*.yaml")), *PYTHON)
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@dataclass(frozen=True)
class Drawn:
    """The facts that a page shows."""

    placement: Placement
    details: Details

    @property
    def columns(self) -> list[str]:
        return column_names(self.placement)


def check_page(build: LoadedBuild, browser: Browser, folder: Path) -> None:
    """Check the page of a build at two widths, as a reader sees it."""
    content = collect(Subject(build), "placer report")[0]
    assert content.placement is not None
    assert content.details is not None
    facts = Drawn(content.placement, content.details)
    file = folder / "report.html"
    file.write_text(page_html(content))
    check_figures(build, facts)
    with open_page(browser, file, viewport={"width": 1900, "height": 900}) as page:
        check_layout(page)
    with open_page(browser, file, viewport={"width": 1280, "height": 900}) as page:
        check_layout(page)
        check_opened(build, facts, open_boxes(page))
        check_search(build, facts, page)
        check_layout(page)


def check_figures(build: LoadedBuild, facts: Drawn) -> None:
    """Check that each op is in one box, and that sums are those of the plan."""
    plan, placement, details = build.plan, facts.placement, facts.details
    graph = drawn_graph(build.graphs)
    is_step = placement.phase == "a training step"
    edges = plan.step_edges if is_step else plan.prediction_edges
    boxes = placement.boxes
    assert not any(column.left_out for column in placement.columns)
    sent = [arrow for arrow in placement.arrows if not arrow.between_devices]
    assert sum(arrow.nbytes for arrow in sent) == sum(edge.nbytes for edge in edges)
    if is_step:
        assert sum(box.total_flops for box in boxes) == sum(
            node.flops + node.replicated_flops + node.exchange_flops
            for node in plan.nodes
        )
    items = item_bytes(plan)
    assert sum(box.total_stored for box in boxes) == sum(
        block_bytes(block, items)
        for node in plan.nodes
        for table in node.tables
        for block in table.blocks
    )
    # An op on different nodes has a box on each: together they are the nodes of the op.
    count = dict.fromkeys(details.ops, 0)
    for box, layers in zip(boxes, details.boxes, strict=True):
        nodes = len(placement.groups[placement.columns[box.column].group].nodes)
        for layer in layers:
            for op in details.ops[slice(*layer.ops)]:
                count[op] += nodes
    texts = op_texts(build, graph.name)
    assert set(count) == set(texts)
    for text, placed in zip(texts, graph.ops, strict=True):
        if not placed.structure.directive:
            assert count[text] >= len(graph.nodes(placed)), text


def op_texts(build: LoadedBuild, name: str) -> list[str]:
    """Return the lines of a graph in graph.txt."""
    text = build.read_text("graph.txt").partition(f"graph @{name} ")[2]
    return [line.strip() for line in text.partition("\n}")[0].split("\n")[1:]]


def check_opened(
    build: LoadedBuild, facts: Drawn, opened: list[dict[str, Any]]
) -> None:
    """Check that a click shows the facts, reasons and positions of `placer explain`."""
    info = BuildInfo(build.plan, build.graphs, build.op_positions)
    boxes = zip(facts.placement.boxes, facts.details.boxes, opened, strict=True)
    for box, layers, panel in boxes:
        assert panel["title"] == box.title
        assert panel["on"].startswith(f"on {facts.columns[box.column]} (")
        assert [row[0] for row in panel["layers"]] == [layer.name for layer in layers]
        assert panel["arrows"] == sum(
            (arrow.source == box.id) + (arrow.target == box.id)
            for arrow in facts.placement.arrows
        )
        ops = [op for layer in layers for op in facts.details.ops[slice(*layer.ops)]]
        assert [text.replace("=", "", 1) for text in map(squeezed, panel["ops"])] == [
            text.replace("=", "", 1) for text in map(squeezed, ops[: len(panel["ops"])])
        ]
        explained = "\n".join(
            line
            for op in ops
            for name in re.findall(r"%([\w.]+)", op.partition(" = ")[0])[:1]
            for line in explain(info, name)
        )
        if panel["why"] != "as written in the spec":
            for reason in panel["why"].split("; "):
                assert reason in explained, panel
        for row in panel["layers"]:
            if row[4]:
                names = {row[0], row[0].partition(".")[0]} & set(build.op_positions)
                assert any(
                    build.op_positions[name].startswith(f"{row[4]}:") for name in names
                ), row
                if row[0] in names and f"%{row[0]}:" in explained:
                    assert f"written at {row[4]}:" in explained


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def check_search(build: LoadedBuild, facts: Drawn, page: Page) -> None:
    """Check that each parameter and block is found on the nodes that store it, and
    nowhere else."""
    plan, placement = build.plan, facts.placement
    stored = facts.details.parameters
    holders: dict[str, set[str]] = {t.name: set(t.holders) for t in plan.sparse_tables}
    for node in plan.nodes:
        for table in node.tables:
            for block in table.blocks:
                whole = () if table.local else (block.parameter,)
                for name in {block.name, *whole}:
                    holders.setdefault(name, set()).add(node.name)
    assert holders.keys() >= {parameter.name for parameter in plan.parameters}
    assert holders.keys() == stored.keys()
    for name, places in find_parameters(page, list(holders)).items():
        assert len(places) == len(set(places)) == len(stored[name])
        found: set[str] = set()
        for place in places:
            (index,) = (
                i
                for i, column in enumerate(facts.columns)
                if place.startswith(f"{column} · ")
            )
            found |= set(placement.groups[placement.columns[index].group].nodes)
        assert found == holders[name], name


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_shipped_spec(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    check_page(load_build(SPECS / name), browser, tmp_path)


MODEL = """\
name: small
nodes: NODES
inputs: {x: "float32[batch, 8]", y: "int32[batch]"}
data: {train: {source: "npz:x.npz", batch: 1344}}
graph:
  - {name: h, op: fc, in: x, size: 16, activation: relu}
  - {name: z, op: fc, in: h, size: 5}
  - {name: loss, op: softmax_cross_entropy, in: [z, y]}
train: {minimize: loss, epochs: 1, MORE optimizer: {op: adam, learning_rate: 0.1}}
predict: {outputs: [z]}
"""
KINDS = {
    "one node": ("{worker: {count: 1}}", ""),
    "64 nodes": ("{worker: {count: 56}, ps: {count: 8}}", ""),
    "all-reduce": ("{worker: {count: 3}}", ""),
    "GPUs": ("{worker: {count: 2, devices: {cpu: 1, gpu: 4}}, ps: {count: 1}}", ""),
    "threads": ("{worker: {count: 2}, ps: {count: 1}}", "threads: 4,"),
}


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "64 nodes" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_the_page_of_a_small_model(kind: str, browser: Browser, tmp_path: Path) -> None:
    check_page(load_build(small_spec(kind, tmp_path)), browser, tmp_path)


def small_spec(kind: str, folder: Path) -> Path:
    nodes, more = KINDS[kind]
    file = folder / "small.yaml"
    file.write_text(MODEL.replace("NODES", nodes).replace("MORE", more))
    return file


def test_the_page_of_a_prediction(browser: Browser, tmp_path: Path) -> None:
    """A build that only predicts has no training step and no optimizer."""
    placer.compile(small_spec("all-reduce", tmp_path), tmp_path / "build")
    build = compile_prediction(tmp_path / "build")
    files = build.files_in(tmp_path)
    loaded = LoadedBuild(tmp_path, build.plan, files.__getitem__)
    check_page(loaded, browser, tmp_path)


HIDDEN = """() => {
  const scrolled = document.querySelector('.scroll:has(> .picture)');
  return scrolled.scrollWidth > scrolled.clientWidth;
}"""


def test_a_picture_that_is_a_little_too_wide_fits_at_first(
    browser: Browser, tmp_path: Path
) -> None:
    build = load_build(SPECS / "digits.yaml")
    file = tmp_path / "report.html"
    file.write_text(page_html(collect(Subject(build), "placer report")[0]))
    with open_page(browser, file, viewport={"width": 1200, "height": 700}) as page:
        assert not page.evaluate(HIDDEN)
        page.locator("#fit").uncheck()
        assert page.evaluate(HIDDEN)
    with open_page(browser, file, viewport={"width": 600, "height": 700}) as page:
        assert page.evaluate(HIDDEN)  # a smaller text would not be readable
        page.locator("#fit").check()
        assert not page.evaluate(HIDDEN)


def test_the_layout_check_finds_faults(browser: Browser, tmp_path: Path) -> None:
    build = load_build(small_spec("all-reduce", tmp_path))
    file = tmp_path / "report.html"
    file.write_text(page_html(collect(Subject(build), "placer report")[0]))
    with open_page(browser, file) as page:
        check_layout(page)
        page.evaluate(
            "document.querySelector('#box-2 .shape').setAttribute('height', 3000)"
        )
        faults = page.evaluate(FAULTS)
        assert any("goes through box-2" in fault for fault in faults)
        assert any("cover each other: box-2 | box-3" in fault for fault in faults)


HOSTILE = "</script>\"><img src=x onerror=alert(1)>'&amp;${title}"


def test_texts_of_users_stay_text(browser: Browser, tmp_path: Path) -> None:
    """A user's own texts are names of files and runs, settings, metrics and errors."""
    folder = tmp_path / HOSTILE.replace("/", "\N{FRACTION SLASH}")
    folder.mkdir()
    spec = small_spec("one node", folder).rename(folder / f"{folder.name}.yaml")
    placer.compile(spec, folder / "build")
    runs = [write_run(folder, i) for i in range(2)]
    for words in ([str(spec)], list(map(str, runs))):
        out = tmp_path / "report.html"
        done = CliRunner().invoke(
            report_command, [*words, "--out", str(out)], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        with open_page(browser, out) as page:
            check_layout(page)
            opened = open_boxes(page)
            lines = {row[4] for box in opened for row in box["layers"]}
            assert f"{spec.name}:8" in lines
            assert "<img src=x onerror" in page.locator("body").inner_text()
            assert page.locator("img").count() == 0
            assert page.locator("script").count() == 2


def write_run(folder: Path, number: int) -> Path:
    """Write a run with hostile texts. Return its folder."""
    run = folder / f"{folder.name}-{number}"
    run.mkdir()
    own = {f"{HOSTILE}{i}": f"{HOSTILE}{number}" for i in range(2)}
    command = Command(
        HOSTILE, HOSTILE, float(number), HOSTILE, own, own, own, own, own,
        build=str(folder / "build"),
    )  # fmt: skip
    values: dict[str, float | None] = {HOSTILE: 0.5 + number}
    end = RunEnd("failed", HOSTILE, 1.0, 2, values, values, 10.0, warnings=(HOSTILE,))
    (run / "command.json").write_bytes(msgspec.json.encode(command))
    (run / "result.json").write_bytes(msgspec.json.encode(end))
    lines = [{"step": step, "metrics": values, "eval": values} for step in (1, 2)]
    (run / "history.jsonl").write_bytes(
        b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    )
    return run


@pytest.mark.slow
def test_the_benchmark_of_pages(tmp_path: Path) -> None:
    bench = str(find_file("bench/report_page.py"))
    done = subprocess.run(
        [sys.executable, bench, "20", "--runs", "1", "--builds", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    for name in ("CPU", "file", "first paint", "ready", "first click", "search"):
        assert re.search(rf"^  {name} +\d+\.\d\d ", done.stdout, re.MULTILINE), name
