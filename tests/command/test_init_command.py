"""`placer init`: the file that it writes, what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import placer
from placer.command.cli import main

TABLE = "id,age,rooms,town,income\n" + "".join(
    f"{i},{20 + i * 7 % 50},{i % 3},{'Rome' if i % 3 else ''},{'high' if i % 2 else 'low'}\n"
    for i in range(40)
)


@pytest.fixture
def init(tmp_path, monkeypatch, capsys):
    """Run `placer init` in an empty folder; return its status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["init", *words])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_without_a_file_the_spec_trains_on_data_that_ships(init):
    status, out, _ = init()
    assert status == 0
    assert out == "written to model.yaml; train it with: placer train model.yaml\n"
    placer.compile("model.yaml", "build")
    assert placer.launch("build", in_process=True, steps=3).steps == 3


def test_a_table_is_described_and_its_spec_named_like_it(init):
    Path("people.csv").write_text(TABLE)
    status, out, _ = init("people.csv")
    assert status == 0
    assert out.splitlines() == [
        "people.csv: 40 rows; 5 columns: the label, 1 of numbers, 1 of codes, 1 of words,"
        " 1 left out",
        "  left out: id: it contains row numbers",
        "  few whole numbers, read as codes: rooms; the comments of the spec say how to read"
        " them as quantities",
        "label: income (a guess; choose another with --label COLUMN)",
        "task: classification, 2 classes",
        "written to people.yaml; train it with: placer train people.yaml",
    ]
    assert placer.compile("people.yaml", "build").name == "people"


def test_the_path_of_the_table_is_relative_to_the_spec(init):
    Path("data").mkdir()
    Path("data/people.csv").write_text(TABLE)
    Path("specs").mkdir()
    status, out, _ = init("data/people.csv", "--out", "specs/a.yaml", "--label", "age")
    assert status == 0
    assert (
        "label: age\ntask: regression (use --task classification for the other)" in out
    )
    assert '"csv:../data/people.csv"' in Path("specs/a.yaml").read_text()
    placer.compile("specs/a.yaml", "build")
    assert placer.launch("build", in_process=True, steps=1).steps == 1


def test_an_existing_file_is_overwritten_only_with_force(init):
    Path("model.yaml").write_text("mine")
    status, _, err = init()
    assert status == 2
    assert "model.yaml already exists; overwrite it with --force" in err
    assert Path("model.yaml").read_text() == "mine"
    assert init("--force")[0] == 0
    assert "mine" not in Path("model.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.csv"], "'nowhere.csv' does not exist"),
        (["--label", "x"], "--label needs a FILE.csv or FILE.parquet"),
        (["--out", "model.txt"], "the name of a spec must end in .yaml"),
        (["--out", "no/model.yaml"], "cannot write no/model.yaml: No such file"),
        (["people.csv", "--label", "incme"], "has no column 'incme'"),
    ],
)
def test_mistakes_are_refused_and_nothing_is_written(init, words, message):
    Path("people.csv").write_text(TABLE)
    status, _, err = init(*words)
    assert status == 2
    assert message in err
    assert [file.name for file in Path().iterdir()] == ["people.csv"]
