"""Plans and results have pictures in notebooks."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest

import placer
from placer.plan.plan import to_json
from placer.runtime.control.result import Result
from placer.system.resources import find_file

SPEC = find_file("specs/two_workers.yaml")
RESULT = Result(3, {"loss": 0.5}, {"loss": 0.25}, 10.0, {"worker:0": 5})


def pictures(html: str) -> list[ET.Element]:
    """Return the SVG images in an HTML text."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', html)
    return [ET.fromstring(base64.b64decode(each)) for each in found]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook") / "build"


@pytest.fixture(scope="module")
def plan(build: Path) -> placer.Plan:
    return placer.compile(SPEC, build)


def test_a_plan_is_shown_as_its_placement(plan: placer.Plan, build: Path) -> None:
    html = plan._repr_html_()
    assert "&lt;Plan of two_workers: worker:0-1" in html
    (picture,) = pictures(html)
    titles = ["".join(each.itertext()) for each in picture.iter() if "text" in each.tag]
    assert {"worker:0", "worker:1", "features"} <= set(titles)
    assert plan.folder == build
    assert "build_folder" not in to_json(plan)


def test_the_picture_of_a_replaced_build_is_not_shown(
    plan: placer.Plan, tmp_path: Path
) -> None:
    replaced = placer.compile(SPEC, tmp_path / "build")
    placer.compile(SPEC, tmp_path / "build", overrides={"seed": 5})
    html = replaced._repr_html_()
    assert "contains another build now: no picture" in html
    assert not pictures(html)
    plan_of_nothing = msgspec.structs.replace(plan)
    plan_of_nothing.keep_folder(tmp_path / "removed")
    assert "no picture: cannot read " in plan_of_nothing._repr_html_()


def line(step: int, loss: float, **facts: Any) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": 1,
        "seconds": 1.0,
        "metrics": {"loss": loss},
        **facts,
    }


def test_a_result_is_shown_with_its_curves_and_shares() -> None:
    result = msgspec.structs.replace(RESULT, shares={"worker:0": {"wait": 1.0}})
    history = [line(1, 0.5), line(2, float("nan")), line(3, 0.4, eval={"loss": 0.3})]
    result.keep(lambda: history, dict, ())
    html = result._repr_html_()
    assert html.startswith("<pre>Result: 3 steps")
    legend, loss, shares = pictures(html)
    assert loss.attrib["aria-label"].startswith("loss over steps")
    assert shares.attrib["aria-label"].startswith("Shares of each node's time")
    assert legend.attrib["role"] == "img"


def test_a_result_without_a_history_is_shown_as_text() -> None:
    assert not pictures(RESULT._repr_html_())
