"""`placer report` finds builds, specs and runs, and writes their page or picture."""

from __future__ import annotations

import json
import os
import re
import shutil
import webbrowser
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import placer
from placer.command.explain import explain_command
from placer.command.report import report_command
from placer.command.show import show_command
from placer.compiler.build_or_spec import LoadedBuild
from placer.compiler.driver import compile_prediction
from placer.errors import PlacerError
from placer.plan.plan import read_plan
from placer.report.page.collect import collect
from placer.report.page.facts import Page
from placer.report.page.picture import read_style
from placer.report.page.subject import Subject, find_subject
from placer.report.page.write import page_html
from placer.report.run_files import Command, RunEnd

SPEC = """\
name: small
nodes: {worker: {count: 2}}
inputs: {x: "float32[batch, 2]", y: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: mean_squared_error, in: [h, y]}
train: {minimize: loss, epochs: 1, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "small.yaml").write_text(SPEC)
    placer.compile(folder / "small.yaml", folder / "build")
    return folder / "build"


@pytest.fixture
def folder(build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a spec and a build."""
    shutil.copytree(build, tmp_path / "build")
    (tmp_path / "small.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(
    folder: Path,
    name: str,
    started: float,
    build: Path | None,
    *,
    graph: str = "",
    loss: float = 0.5,
    **options: Any,
) -> Path:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    settings = {"rate": started}
    if build is not None:
        shutil.copytree(build, run / "build")
        graph = read_plan(build).files["graph.txt"][:8]
    command = Command(
        "small", "placer train small.yaml", started, "small.yaml", {},
        {**settings, "graph": graph}, options, {}, {},
    )  # fmt: skip
    (run / "command.json").write_bytes(msgspec.json.encode(command))
    end = RunEnd("finished", None, 1.0, 2, {"loss": loss}, {"loss": loss}, 10.0)
    (run / "result.json").write_bytes(msgspec.json.encode(end))
    lines = [
        {"step": 1, "metrics": {"loss": 1.0}},
        {"step": 2, "metrics": {"loss": 0.5}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "history.jsonl").write_text(text)
    return run.relative_to(folder)


def report(*words: object) -> str:
    done = CliRunner().invoke(
        report_command, [*map(str, words)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def facts(*words: object) -> Page:
    done = CliRunner().invoke(
        report_command, [*map(str, words), "--json"], catch_exceptions=False
    )
    return msgspec.json.decode(done.stdout, type=Page)


def error(*words: object) -> str:
    with pytest.raises(PlacerError) as raised:
        report(*words)
    return str(raised.value)


def test_a_build_and_a_spec_have_the_same_page(folder: Path) -> None:
    assert report("build").splitlines()[0] == "report.html"
    assert report("small.yaml", "--out", "spec.html").splitlines()[0] == "spec.html"
    pages = [Path(name).read_text() for name in ("report.html", "spec.html")]
    assert all(page.endswith("</html>\n") for page in pages)
    build, spec = facts("build"), facts("small.yaml")
    assert build.placement == spec.placement
    assert build.details is not None
    assert msgspec.structs.replace(spec, command="", untimed="", details=None) == (
        msgspec.structs.replace(build, command="", untimed="", details=None)
    )
    assert report("build").splitlines()[0] == "report.html"
    assert Path("report.html").read_text() == pages[0]


def test_options_of_the_spec(folder: Path) -> None:
    totals = facts("small.yaml", "--set", "data.train.batch=8").totals
    assert ("8", "rows in a step") in [(each.value, each.label) for each in totals]
    assert "whose keys cannot be changed" in error("build", "--set", "train.epochs=2")


def test_the_picture_alone(folder: Path) -> None:
    assert report("build", "--svg").splitlines()[0] == "placement.svg"
    picture = ET.parse("placement.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert "light-dark(" in Path("placement.svg").read_text()


def test_the_file_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    report("build", "--open")
    assert opened == [(folder / "report.html").as_uri()]


def test_runs_are_compared(folder: Path) -> None:
    first = write_run(folder, "small-1", 1.0, folder / "build")
    second = write_run(folder, "small-2", 2.0, folder / "build")
    page = facts(first, second)
    assert [run.name for run in page.runs] == ["small-1", "small-2"]
    assert [curve.run for curve in page.curves] == ["small-1", "small-2"]
    assert page.placement is not None
    assert page.source == ""
    assert "small: 2 runs, worker:0-1" in report(first, second)
    report(first, second, "--svg")


def test_runs_with_different_builds(folder: Path) -> None:
    placer.compile("small.yaml", "other", overrides=["data.train.batch=8"])
    first = write_run(folder, "small-1", 1.0, None)
    second = write_run(folder, "small-2", 2.0, folder / "build")
    third = write_run(folder, "small-3", 3.0, folder / "other")
    page = facts(first, second, third)
    assert page.source == (
        "The picture shows the build of small-2, the first run with a build. The builds of"
        " the runs differ; the section Runs lists the different settings."
    )
    assert "--svg has several placements" in error(second, third, "--svg")


def test_the_newest_run_is_the_default(folder: Path) -> None:
    assert "this folder has no runs" in error()
    write_run(folder, "small-9", 9.0, folder / "build")
    write_run(folder, "small-10", 10.0, folder / "build")
    assert "'runs/small-10' is the newest run in 'runs'" in report()


def test_a_run_without_its_build(folder: Path) -> None:
    run = write_run(folder, "small-1", 1.0, None)
    assert f"the build of '{run}' is missing" in report(run)
    assert facts(run).placement is None
    assert "no placement to draw" in error(run, "--svg")
    shutil.copytree(folder / "build", folder / run / "build")
    other = write_run(folder, "small-2", 2.0, None, graph="another")
    shutil.copytree(folder / "build", folder / other / "build")
    assert facts(run).placement is not None
    assert "is missing" in report(other)


def test_the_trace_of_a_run(folder: Path) -> None:
    """The trace of a run is used if the run has written it. The rest is said."""
    run = write_run(folder, "small-1", 1.0, folder / "build", trace="t.json")
    assert "the trace 't.json' of the run is missing" in report(run)
    Path("t.json").write_text("{}")
    late = os.stat(run / "result.json").st_mtime + 3600
    os.utime("t.json", (late, late))
    assert "the trace 't.json' was not written by the run" in report(run)
    os.utime("t.json", (2.0, 2.0))
    said = report(run)
    assert "the trace is 't.json', which the run wrote" in said
    assert "the trace of the run is not used: " in said
    assert facts(run).step_time is None
    assert "t.json" in error(run, "--trace", "t.json")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("biuld", "did you mean 'build'?"),
        ("smal.yaml", "did you mean 'small.yaml'?"),
        ("runs", "name one or several of its runs, as in: placer report runs/small-2"),
        ("empty", "'empty' is neither a build nor a run"),
        ("rows.json", "a trace is an option: --trace rows.json"),
        ("rows.txt", "rows.txt is empty"),
        ("build small.yaml", "several paths must be runs, and 'build' is a build"),
        ("runs/small-1 small.yaml", "'small.yaml' is a spec"),
        ("runs/small-1 runs/../runs/small-1", "is given twice"),
        ("runs/small-1 --set train.epochs=2", "--set changes only the keys of a spec"),
        ("runs/small-1 runs/small-2 --trace rows.json", "is for one build or one run"),
        ("build --out empty", "name a file in the folder: --out empty/report.html"),
        ("build --out a.svg", "'a.svg' would contain an HTML page; name it a.html"),
        ("build --svg --out a.png", "would contain an SVG picture; name it a.svg"),
        ("runs/smal-1", "did you mean 'runs/small-1'?"),
        ("build --out new/a.html", "create the folder: mkdir -p new"),
        ("build --out rows.txt/a.html", "Not a directory"),
        ("build --out pipe", "cannot write 'pipe': it is not a regular file"),
        (f"build --out {'a' * 300}", "File name too long"),
    ],
)
def test_mistakes(words: str, says: str, folder: Path) -> None:
    write_run(folder, "small-1", 1.0, folder / "build")
    write_run(folder, "small-2", 1.0, None)
    (folder / "empty").mkdir()
    (folder / "rows.json").write_text("{}")
    (folder / "rows.txt").write_text("")
    os.mkfifo(folder / "pipe")
    done = CliRunner().invoke(report_command, words.split())
    found = (
        done.output if isinstance(done.exception, SystemExit) else str(done.exception)
    )
    assert says in " ".join(found.split())
    assert done.exit_code
    assert not Path("report.html").exists()


@pytest.mark.parametrize("name", ["plan.json", "sources.json"])
def test_a_damaged_build(name: str, folder: Path) -> None:
    for content in (b"", b"\x00\xff", (folder / "build" / name).read_bytes()[:-40]):
        (folder / "build" / name).write_bytes(content)
        said = error("build")
        assert f"'build/{name}' cannot be read: " in said
        assert "hint: compile the spec again" in said


def test_options_of_another_version(folder: Path) -> None:
    runs = [
        write_run(folder, f"small-{i}", 1.0, None, old_option=i, loss=0.5)
        for i in (1, 2)
    ]
    page = facts(*runs)
    assert [run.settings["--old-option"] for run in page.runs] == ["1", "2"]


def test_a_page_of_many_runs(folder: Path) -> None:
    runs = [write_run(folder, f"small-{i}", float(i), None) for i in range(300)]
    assert report(*runs).splitlines()[-2] == "small: 300 runs"
    assert "runs/small-15 … and 284 more runs</code>" in Path("report.html").read_text()
    assert Path("report.html").stat().st_size < 1_000_000


def test_a_subject_of_a_folder_with_a_build(folder: Path) -> None:
    """A folder that contains a build, without the files of a run, is that build."""
    (folder / "old").mkdir()
    shutil.move("build", "old/build")
    assert find_subject((Path("old"),)).build is not None


def test_a_build_that_only_predicts(folder: Path) -> None:
    placer.compile("small.yaml", "predicting", outputs=["h"])
    build = compile_prediction(Path("predicting"))
    files = build.files_in(Path("predicting"))
    loaded = LoadedBuild(Path("predicting"), build.plan, files.__getitem__)
    page, _ = collect(Subject(loaded), "placer report")
    assert page.placement is not None
    assert page.placement.phase == "a prediction batch"
    assert ("20 FLOPs", "in a batch") in [(t.value, t.label) for t in page.totals]
    assert [layer.name for layer in page.layers] == ["x", "h"]
    assert page.untimed == ""
    assert "<h2" in page_html(page)


def test_a_page_needs_nothing_else(folder: Path) -> None:
    report("build")
    page = Path("report.html").read_text()
    addresses = set(re.findall(r"[a-z]+://[^\"' <)]*", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert len(read_style("page.js")) < 30_000


def test_a_failed_run_has_its_error_under_the_title_and_no_empty_chart(
    folder: Path,
) -> None:
    run = write_run(folder, "small-1", 1.0, folder / "build")
    end = RunEnd("failed", "worker:0 was <killed>\n  log: x", 1.0, 1, {"loss": 1.0})
    (run / "result.json").write_bytes(msgspec.json.encode(end))
    (run / "history.jsonl").write_text('{"step": 1, "metrics": {"loss": 1.0}}\n')
    report(run)
    head, _, _ = Path("report.html").read_text().partition("<nav")
    assert "small-1 failed: worker:0 was &lt;killed&gt;" in head
    assert facts(run).curves == ()


def test_show_and_explain_take_a_run(folder: Path) -> None:
    run = write_run(folder, "small-1", 1.0, folder / "build")
    for command, words in ((show_command, ["--summary"]), (explain_command, ["h.w"])):
        done = [
            CliRunner().invoke(command, [str(path), *words], catch_exceptions=False)
            for path in (run, folder / "build")
        ]
        assert done[0].output == done[1].output
        assert done[0].exit_code == 0
    shutil.rmtree(run / "build")
    missing = CliRunner().invoke(show_command, [str(run)])
    assert "the build of the run" in str(missing.exception)


def test_the_trace_of_another_build_names_its_run(folder: Path) -> None:
    placer.compile("small.yaml", "other", overrides=["data.train.batch=8"])
    write_run(folder, "small-1", 1.0, folder / "other", trace="t.json")
    write_run(folder, "small-2", 2.0, folder / "other")
    about = {"build": read_plan(folder / "other").digest, "model": "small"}
    Path("t.json").write_text(json.dumps({"traceEvents": [], "otherData": about}))
    said = error("build", "--trace", "t.json")
    assert "is the build of runs/small-1" in said
    assert "placer report runs/small-1 --trace t.json" in said
