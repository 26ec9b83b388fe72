"""The charts of a report page are readable: texts do not overlap or leave the chart."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chart_geometry import SVG, check_readable, parse, pieces, titles

from placer.report.page.charts.axes import Scale, format_ticks, nice_ticks
from placer.report.page.charts.balance import balance_chart
from placer.report.page.charts.chain import chain_chart
from placer.report.page.charts.curves import curve_charts, draw_curves
from placer.report.page.charts.memory import memory_chart
from placer.report.page.charts.pipeline import pipeline_chart
from placer.report.page.charts.ranges import shown_range
from placer.report.page.charts.shares import shares_chart
from placer.report.page.charts.slices import merge_slices
from placer.report.page.charts.smoothing import smooth
from placer.report.page.charts.timeline import timeline_chart
from placer.report.page.facts import (
    Curve,
    MemoryRow,
    PipelineRow,
    RunFacts,
    TableRow,
    TaskFacts,
)
from placer.report.step.facts import Piece, SliceFacts, StepTime, ThreadRow

HOSTILE = '"><img src=x onerror=alert(1)></script>'
LONG = "worker:0,2,4,6,8,10,12,14,16,18,20,22,24,26"
MEMORY = (
    MemoryRow("worker:0-1", 0, 0, 2_450_000, 155_000_000, devices={"cpu:0": (1, 0)}),
    MemoryRow(
        LONG,
        101_000,
        202_000,
        1_248_000,
        904_000,
        limit=2_000_000,
        devices={"cpu:0": (1_551_000, 2_000_000)},
    ),
    MemoryRow(
        HOSTILE,
        200_000,
        400_000,
        2_000_000,
        124_000_000,
        limit=80_000_000_000,
        devices={
            "cpu:0": (538_900, 80_000_000_000),
            "gpu:0-7": (3_000_000, 4_000_000),
        },
    ),
)
TABLES = (
    TableRow("ps:0", ("h1.w", HOSTILE), 32_768, 1.70),
    TableRow("ps:1", ("h1.b", "logits.w"), 5_672, 0.30),
    TableRow("ps:2", (), 0, 0.0),
)
CATEGORIES = (
    *("compute", "update", "rows", "read", "copy", "record"),
    *("send", "receive", "message", "wait", "step", "other"),
)


def step_time(rows: int = 3, slices: int = 40, seconds: float = 0.0425) -> StepTime:
    """Return a step with equal slices in several threads, and a chain through them."""
    length = seconds / slices
    return StepTime(
        step=46,
        seconds=seconds,
        steps=100,
        chain=tuple(
            Piece(
                f"worker:{i % rows}",
                "program",
                CATEGORIES[i % len(CATEGORIES)],
                HOSTILE if i == 3 else f"forward_{i}",
                i * seconds / 10,
                (i + 1) * seconds / 10,
                source="ps:0" if i % 4 == 1 else "",
                target="worker:0" if i % 4 == 1 else "",
                nbytes=98_304 if i % 4 == 1 else 0,
            )
            for i in range(10)
        ),
        shares={
            f"worker:{i}": {name: 1 / len(CATEGORIES) for name in CATEGORIES}
            for i in range(rows)
        },
        rows=tuple(
            ThreadRow(
                f"worker:{i}",
                thread,
                tuple(
                    SliceFacts(
                        k * length,
                        (k + 1) * length,
                        CATEGORIES[k % len(CATEGORIES)],
                        HOSTILE if k == 1 else f"forward_{k}",
                        depth,
                    )
                    for depth in range(2)
                    for k in range(slices)
                ),
            )
            for i in range(rows)
            for thread in ("program", "service of ps:0")
        ),
        sentence=f"A step takes 42.5 ms: {HOSTILE}.",
        advice=(),
        measured={},
    )


def schedule(tasks: int = 16) -> tuple[PipelineRow, ...]:
    names = ("forward", "backward", "forward_backward", "forward_2", "update")
    rows = (
        PipelineRow(
            f"worker:{i}",
            0.87,
            tuple(
                TaskFacts(
                    names[k % 5],
                    None if k == tasks - 1 else k,
                    k / tasks,
                    (k + 0.9) / tasks,
                )
                for k in range(tasks)
            ),
        )
        for i in range(3)
    )
    return tuple(rows)


CHARTS = {
    "memory": memory_chart(MEMORY),
    "balance": balance_chart(TABLES),
    "declared": pipeline_chart(schedule()),
    "measured": pipeline_chart(schedule(), seconds=0.0857),
    "chain": chain_chart(step_time()),
    "timeline": timeline_chart(step_time()),
    "many threads": timeline_chart(step_time(rows=60)),
    "shares": shares_chart(step_time().shares),
}


@pytest.mark.parametrize("name", CHARTS)
def test_texts_neither_overlap_nor_leave_the_chart(name: str) -> None:
    svg = check_readable(CHARTS[name])
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"]


def test_charts_without_facts_are_empty() -> None:
    assert memory_chart(()) == balance_chart(()) == pipeline_chart(()) == ""
    assert shares_chart({}) == curve_charts(()) == ""
    empty = StepTime(1, 0.0, 1, (), {}, (), "", (), {})
    assert timeline_chart(empty) == chain_chart(empty) == ""


def test_names_of_a_spec_stay_text() -> None:
    for markup in CHARTS.values():
        assert "<img" not in markup
        assert "</script" not in markup
    assert f"ps:0: h1.w, {HOSTILE}" in titles(parse(CHARTS["balance"]))


def test_limits_are_marked_and_named() -> None:
    svg = parse(CHARTS["memory"])
    texts = ["".join(each.itertext()) for each in svg.iter(f"{SVG}text")]
    assert "1.6 MB of 2.0 MB" in texts
    assert "gpu:0-7: peak 3.0 MB of 4.0 MB each" in texts
    assert "cpu:0: peak 538.9 kB of 80.0 GB" in texts
    marks = [each for each in svg.iter(f"{SVG}line") if each.get("class") == "limit"]
    assert len(marks) == 2  # the third one is far beyond the bars


def test_boxes_of_a_schedule_have_letters_and_numbers() -> None:
    svg = parse(CHARTS["declared"])
    texts = ["".join(each.itertext()) for each in svg.iter(f"{SVG}text")]
    for expected in ("f0", "b1", "fb2", "f2.3", "87 % busy", "fb: forward_backward"):
        assert expected in texts


def test_bars_of_a_step_tile_its_width() -> None:
    for name in ("chain", "shares"):
        svg = parse(CHARTS[name])
        rows: dict[float, list[tuple[float, float]]] = {}
        for each in pieces(svg):
            if each.top > 20:  # below the legend
                rows.setdefault(each.top, []).append((each.left, each.right))
        for row in rows.values():
            for before, after in pairwise(row):
                assert before[1] == pytest.approx(after[0], abs=0.02)


def test_100_000_slices_are_a_bounded_picture() -> None:
    big = step_time(rows=50, slices=500)
    assert sum(len(row.slices) for row in big.rows) == 100_000
    svg = timeline_chart(big)
    assert len(svg) < 2_000_000
    assert len(pieces(parse(svg))) < 6100


def test_merged_slices_cover_their_time() -> None:
    row = [SliceFacts(i / 1000, (i + 0.5) / 1000, "send", "x", 0) for i in range(1000)]
    row.append(SliceFacts(1.0, 2.0, "wait", "wait for ps:0", 0))
    (merged,) = merge_slices([row], shortest=0.002, most=10_000)
    assert sum(each.count for each in merged) == 1001
    assert sum(each.busy for each in merged[:-1]) == pytest.approx(0.5)
    assert merged[-1].name == "wait for ps:0"
    assert all(before.end <= after.start for before, after in pairwise(merged))
    (few,) = merge_slices([row], shortest=0.002, most=20)
    assert len(few) <= 20


@given(
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e9),
    st.integers(2, 12),
)
def test_ticks_are_sorted_and_inside(low: float, size: float, most: int) -> None:
    high = low + size
    ticks = nice_ticks(low, high, most)
    assert len(ticks) <= most
    assert list(ticks) == sorted(set(ticks))
    slack = 1e-6 * size
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert len(set(format_ticks(ticks))) == len(ticks)


def curves(runs: int, steps: int) -> tuple[Curve, ...]:
    found = []
    for run in range(runs):
        for metric, first in (("loss", 200.0), ("accuracy", 0.1), (HOSTILE, -3.0)):
            points = tuple((s, first / s + run) for s in range(1, steps + 1))
            seconds = tuple(s * 0.01 * (run + 1) for s in range(1, steps + 1))
            name = f"digits-{run}"
            found.append(Curve(name, metric, False, points, seconds))
            found.append(Curve(name, metric, True, points[9::10], seconds[9::10]))
    return tuple(curve for curve in found if curve.points)


def facts(name: str, step: int, **metrics: float) -> RunFacts:
    return RunFacts(
        name, name, "finished", 100, 1.0, None, {}, metrics, step, {}, is_best=True
    )


@pytest.mark.parametrize(("runs", "steps"), [(1, 2), (1, 20), (3, 300), (12, 50)])
def test_curves_are_readable(runs: int, steps: int) -> None:
    best = facts("digits-0", min(steps, 10), loss=20.0, accuracy=0.01)
    drawn = draw_curves(curves(runs, steps), [best])
    legend, *charts = map(check_readable, drawn)
    assert len(charts) == 3
    assert len(legend.findall(f"{SVG}text")) == min(runs, 8) + (runs > 8) + 1
    page = ET.fromstring(curve_charts(curves(runs, steps), [best]))
    identifiers = [each.attrib["id"] for each in page.iter(f"{SVG}clipPath")]
    assert len(set(identifiers)) == len(identifiers) == 2 * 3


def test_a_metric_needs_two_points() -> None:
    assert curve_charts(curves(2, 1)) == ""
    assert draw_curves(curves(2, 1)) == ()


def test_a_metric_of_runs_that_are_not_drawn_has_no_chart() -> None:
    last = Curve("digits-9", "auc", True, ((1, 0.5), (2, 0.6)))
    _, *charts = draw_curves((*curves(9, 20), last))
    assert len(charts) == 3


def test_the_best_evaluation_is_marked_in_each_metric_that_it_has() -> None:
    best = facts("digits-1", 50, loss=5.0)
    page = ET.fromstring(curve_charts(curves(2, 100), [best]))
    rings = list(page.iter(f"{SVG}circle"))
    assert len(rings) == 2  # over steps and over seconds
    texts = ["".join(each.itertext()) for each in page.iter(f"{SVG}text")]
    assert "5 at step 50" in texts


def test_runs_differ_in_dashes_and_markers() -> None:
    legend = parse(draw_curves(curves(8, 100))[0])
    lines = {
        (each.attrib["class"], each.get("stroke-dasharray"))
        for each in legend.iter(f"{SVG}path")
        if "smooth" in each.attrib["class"]
    }
    markers = {
        each.attrib["d"]
        for each in legend.iter(f"{SVG}path")
        if "dot" in each.attrib["class"]
    }
    assert len({dash for _, dash in lines}) == len(lines) == len(markers) == 8


def test_spikes_of_the_first_steps_are_cut_off() -> None:
    page = ET.fromstring(curve_charts(curves(1, 300)[:1]))
    texts = ["".join(each.itertext()) for each in page.iter(f"{SVG}text")]
    assert "cut off: first steps up to 200" in texts


def test_a_diverged_run_does_not_flatten_the_others() -> None:
    good = [[(x, 10.0 / x + run) for x in range(1, 100)] for run in range(3)]
    bad = [(x, 1e6 / x + 500.0) for x in range(1, 100)]
    runs = {"a": good[0], "b": good[1], "bad": bad, "c": good[2]}
    low, high, note = shown_range(runs)
    assert 0 <= low < high < 13
    assert note == "cut off: bad, first steps up to 12"
    # A run that stays at the first values of the others is shown.
    assert shown_range({"a": good[0], "flat": [(x, 9.0) for x in range(99)]})[1] > 9


def test_crowded_charts_have_no_thin_lines() -> None:
    for runs, shows in ((2, True), (3, False)):
        assert ('class="raw' in curve_charts(curves(runs, 100))) is shows


def test_a_ring_of_another_metric_names_the_monitored_one() -> None:
    best = msgspec.structs.replace(
        facts("digits-1", 50, loss=5.0, accuracy=1.002), compared="loss"
    )
    page = ET.fromstring(curve_charts(curves(2, 100), [best]))
    texts = ["".join(each.itertext()) for each in page.iter(f"{SVG}text")]
    assert "5 at step 50" in texts
    assert "1.002 at the best loss" in texts


def test_an_average_is_between_the_values_around_it() -> None:
    points = [(i, float(i % 2)) for i in range(1000)]
    averages = smooth(points)
    assert averages is not None
    assert averages[0] == points[0]
    assert averages[-1] == points[-1]
    assert all(0.3 < value < 0.7 for step, value in averages if 20 < step < 980)
    assert smooth(points[:10]) is None


def test_a_scale_without_extent_maps_to_its_start() -> None:
    assert Scale(1.0, 1.0, 3.0, 9.0)(1.0) == 3.0
    assert Scale(0.0, 2.0, 10.0, 0.0)(1.0) == 5.0
