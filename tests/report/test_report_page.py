"""Opens report pages in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.browser import needs_browser, open_browser, open_page
from support.placements import sparse_model

from placer.compiler.build_or_spec import load_build
from placer.report.page import facts
from placer.report.page.collect import collect
from placer.report.page.subject import Subject
from placer.report.page.write import page_html
from placer.report.step.facts import StepTime

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
SPECS = Path(__file__).parents[2] / "specs"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@cache
def page_of(name: str) -> facts.Page:
    spec = SPECS / name
    return collect(Subject(load_build(spec)), f"placer report specs/{name}")[0]


def written(page: facts.Page, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_text(page_html(page))
    return file


@pytest.mark.parametrize(
    "name",
    [
        "digits.yaml",
        "wide_deep_sparse.yaml",
        "transformer_pipeline.yaml",
        "cnn_gpus.yaml",
    ],
)
def test_the_page_of_a_spec(name: str, browser: Browser, tmp_path: Path) -> None:
    content = page_of(name)
    assert content.placement is not None
    assert content.details is not None
    with open_page(browser, written(content, tmp_path)) as page:
        check_layout(page)
        for box in content.placement.boxes:
            page.locator(f"#box-{box.id}").click(position={"x": 30, "y": 12})
            panel = page.locator("#panel")
            panel.locator("h3", has_text=box.title).wait_for()
            assert box.why in panel.locator(".why").all_inner_texts() or not box.why
            shown = panel.inner_text()
            for layer in content.details.boxes[box.id]:
                assert layer.name in shown
                assert layer.line in shown
        for name, holders in [*content.details.parameters.items()][:3]:
            page.locator("#search").fill(name)
            hits = page.locator("#found [role=option]", has_text="parameter")
            hits.first.wait_for()
            columns = {content.placement.boxes[box].column for box in holders}
            titles = {
                content.placement.groups[content.placement.columns[c].group].title
                for c in columns
            }
            notes = hits.filter(has=page.locator(f'.name[title="{name}"]')).locator(
                ".note"
            )
            assert {
                note.partition(",")[0].partition(" · ")[0]
                for note in notes.all_inner_texts()
            } == {title.partition(",")[0] for title in titles}


RECTANGLES = """(name) => [...document.querySelectorAll(name)].map((element) => {
  const { left, top, right, bottom } = element.getBoundingClientRect();
  return [left, top, right, bottom];
})"""
SPILLED = """() => [...document.querySelectorAll('.picture .box')].flatMap((box) => {
  const { left, right, bottom } = box.querySelector('.shape').getBoundingClientRect();
  return [...box.querySelectorAll('text')].filter((text) => {
    const inner = text.getBoundingClientRect();
    return inner.left < left || inner.right > right || inner.bottom > bottom;
  }).map((text) => text.textContent);
})"""


def check_layout(page: Page) -> None:
    """Check that boxes and labels do not cover each other, as the browser drew them."""
    boxes = page.evaluate(RECTANGLES, ".picture .box .shape")
    labels = page.evaluate(RECTANGLES, ".picture .label")
    assert boxes
    for first, second in combinations(boxes + labels, 2):
        assert not overlap(first, second)
    assert page.evaluate(SPILLED) == []


def overlap(first: list[float], second: list[float]) -> bool:
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


def test_keyboard(browser: Browser, tmp_path: Path) -> None:
    """Arrow keys move between boxes, Enter opens one, and Escape closes it."""
    with open_page(browser, written(small_page(), tmp_path)) as page:
        page.locator("#fit").focus()
        for _ in range(2):  # the scrolled figure, then its first box
            page.keyboard.press("Tab")
        assert focused(page) == "box-0"
        page.keyboard.press("ArrowRight")
        assert focused(page) == "box-1"
        page.keyboard.press("ArrowDown")
        assert focused(page) == "box-4"
        page.keyboard.press("ArrowLeft")
        assert focused(page) == "box-6"
        page.keyboard.press("Enter")
        page.locator("#panel h3", has_text="reads rows").wait_for()
        page.keyboard.press("Escape")
        page.locator("#panel:not(.filled)").wait_for()
        assert focused(page) == "box-6"
        page.keyboard.press("/")
        page.keyboard.type("deep1")
        page.locator("#found [role=option]").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.locator("#box-2.open").wait_for()
        page.locator("#panel h3", has_text="stores parameters").wait_for()


def focused(page: Page) -> Any:
    return page.evaluate("document.activeElement.id")


def test_colors_and_themes(browser: Browser, tmp_path: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    fill = "getComputedStyle(document.querySelector('#box-8 .shape')).fill"
    file = written(small_page(), tmp_path)
    with open_page(browser, file, color_scheme="dark") as page:
        dark = page.evaluate(paper)
        page.locator("#theme").click()
        light = page.evaluate(paper)
        assert light != dark
        plain = page.evaluate(fill)
        fills = {}
        for value in ("flops", "bytes", "time", "purpose"):
            page.locator("#color").select_option(value)
            fills[value] = page.evaluate(fill)
        assert fills.pop("purpose") == plain
        assert plain not in fills.values()
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate(paper) == light
        assert not page.locator("#panel").is_visible()
    with open_page(browser, file, color_scheme="light") as page:
        assert page.evaluate(paper) == light


def test_a_narrow_screen_has_a_drawer(browser: Browser, tmp_path: Path) -> None:
    file = written(page_of("digits.yaml"), tmp_path)
    size = {"width": 390, "height": 844}
    with open_page(browser, file, viewport=size) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert not page.locator("#panel").is_visible()
        page.locator("#box-0").click(position={"x": 30, "y": 12})
        page.locator("#panel.filled").wait_for()
        page.locator("#panel .close").click()
        page.locator("#panel.filled").wait_for(state="detached")


def test_many_ops_have_few_elements(browser: Browser, tmp_path: Path) -> None:
    ops = tuple(f"%v{i}: float32[batch, 64] S = fc(%v{i - 1})" for i in range(5000))
    layers = facts.LayerFacts("many", "fc", "[batch, 64]", 10, "m.yaml:3", (0, 5000))
    details = facts.Details(ops, ((layers,), *((),) * 12), {})
    content = facts.Page(
        "m", "placer report", placement=sparse_model(), details=details
    )
    with open_page(browser, written(content, tmp_path)) as page:
        page.locator("#search").fill("%v4321:")
        page.locator("#found [role=option]").first.wait_for()
        page.keyboard.press("Enter")
        page.locator(".op.mark-on", has_text="%v4321: float32[batch, 64] S").wait_for()
        assert page.locator(".op").count() < 60


def test_the_search_puts_layers_before_few_ops(
    browser: Browser, tmp_path: Path
) -> None:
    with open_page(browser, written(page_of("wide_deep.yaml"), tmp_path)) as page:
        page.locator("#search").fill("deep1")
        hits = page.locator("#found [role=option]")
        hits.first.wait_for()
        kinds = hits.locator(".kind").all_inner_texts()
        assert kinds == sorted(kinds, key=["layer", "parameter", "op"].index)
        assert kinds.count("op") == 5
        page.locator("#found li", has_text="begin the search with %").wait_for()
        names = hits.locator(".name").all_inner_texts()
        assert not [name for name in names[:-5] if "block" in name or "grad" in name]
        page.locator("#search").fill("%deep1")
        page.wait_for_function(
            "document.querySelectorAll('#found [role=option]').length > 8"
        )


def test_a_row_of_layers_opens_its_box(browser: Browser, tmp_path: Path) -> None:
    with open_page(browser, written(page_of("digits.yaml"), tmp_path)) as page:
        page.locator("#layers button", has_text="logits").click()
        page.locator("#panel tr.mark-on", has_text="logits").wait_for()
        page.locator(".box.open", has_text="forward and backward").wait_for()


def test_the_legend_hides_runs_and_the_axis_changes(
    browser: Browser, tmp_path: Path
) -> None:
    runs = ("a", "b")
    points = tuple((step, 1.0 / step) for step in range(1, 20))
    seconds = tuple(step / 10 for step, _ in points)
    curves = tuple(facts.Curve(run, "loss", False, points, seconds) for run in runs)
    content = facts.Page("m", "placer report", curves=curves)
    with open_page(browser, written(content, tmp_path)) as page:
        shown = page.locator(".curves path.run-0:visible")
        assert shown.count() == 1
        page.locator(".entries button", has_text="a").click()
        assert shown.count() == 0
        assert page.locator(".curves path.run-1:visible").count() == 1
        page.locator(".entries button", has_text="a").click()
        chart = page.locator(".curves .chart:visible")
        assert "over steps" in (chart.get_attribute("aria-label") or "")
        page.locator("select.axis").select_option("seconds")
        assert "over seconds" in (chart.get_attribute("aria-label") or "")


HOSTILE = "</script><img src=x onerror=alert(1)>\"'${1}`&amp;\u202e\x00"


def test_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    placement = facts.Placement(
        HOSTILE,
        (facts.Group((HOSTILE,), HOSTILE),),
        (facts.Column(0, HOSTILE),),
        (
            facts.Box(0, 0, 0, "other", HOSTILE, (facts.Line(HOSTILE, HOSTILE),), why=HOSTILE, functions=(HOSTILE,)),
            facts.Box(1, 0, 1, "other", HOSTILE),
        ),
        (facts.Arrow(0, 1, 5, values=(HOSTILE,)),),
        HOSTILE,
    )  # fmt: skip
    layer = facts.LayerFacts(HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE, (0, 1))
    content = facts.Page(
        HOSTILE,
        HOSTILE,
        totals=(facts.Total(HOSTILE, HOSTILE),),
        source=HOSTILE,
        placement=placement,
        details=facts.Details((HOSTILE,), ((layer,), ()), {HOSTILE: (0, 1)}),
        untimed=HOSTILE,
        memory=(facts.MemoryRow(HOSTILE, 1, 2, 3, 4, devices={HOSTILE: (1, 2)}),),
        tables=(facts.TableRow(HOSTILE, (HOSTILE,), 1, 1.0),) * 2,
        balance=HOSTILE,
        schedule=(facts.PipelineRow(HOSTILE, 0.5, (facts.TaskFacts(HOSTILE, 1, 0, 0.5),)),),
        curves=(facts.Curve(HOSTILE, HOSTILE, False, ((1, 1.0), (2, 0.5))),),
        runs=(facts.RunFacts(HOSTILE, HOSTILE, HOSTILE, 1, 1.0, 1.0, {HOSTILE: 1.0}, {HOSTILE: 1.0}, 1, {HOSTILE: HOSTILE}, HOSTILE),),
        best=HOSTILE,
        layers=(facts.LayerRow(HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE),),
    )  # fmt: skip
    with open_page(browser, written(content, tmp_path)) as page:
        shown = HOSTILE.replace("\x00", "\N{REPLACEMENT CHARACTER}")
        assert page.locator("h1").text_content() == shown
        page.locator("#box-0").click(position={"x": 30, "y": 12})
        page.locator("#panel.filled").wait_for()
        assert page.locator("#panel h3").text_content() == HOSTILE
        page.locator("#search").fill("onerror")
        page.locator("#found [role=option]").first.wait_for()
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2


def test_the_time_of_a_step_has_the_load_of_other_programs() -> None:
    load = "other programs used 1.5 of 2 cores"
    run = facts.RunFacts(
        "a", "a", "finished", 1, 1.0, 1.0, {}, {}, 1, {}, "", load=load
    )
    time = StepTime(1, 1.0, 1, (), {}, (), "A step takes 1 s.", (), {})
    html = page_html(facts.Page("a", "placer report", step_time=time, runs=(run,)))
    section = html.partition('<section id="time"')[2].partition("</section>")[0]
    assert "Other programs used 1.5 of 2 cores." in section


def small_page() -> facts.Page:
    placement = sparse_model()
    ops: list[str] = []
    layers = []
    for box in placement.boxes:
        own = []
        for line in box.lines:
            ops.append(f"%{line.name}: {line.note} = op()")
            place = (len(ops) - 1, len(ops))
            own.append(
                facts.LayerFacts(line.name, "op", line.note, 5, "m.yaml:3", place)
            )
        layers.append(tuple(own))
    details = facts.Details(
        tuple(ops), tuple(layers), {"deep1": (1, 2), "wide": (1, 2)}
    )
    return facts.Page("small", "placer report", placement=placement, details=details)
