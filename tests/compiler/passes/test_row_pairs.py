"""Warnings about losses and metrics of all pairs of rows that no shape asks for."""

import warnings

import pytest
from support.marks import MAY_PAIR_ROWS

import placer
from placer.command.cli import main
from placer.compiler.build_or_spec import build_folder
from placer.compiler.frontend import load_text
from placer.compiler.passes.row_pairs import find_row_pairs

SPEC = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]", y: "float32[batch]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: p, op: fc, in: x, size: 1}
  - {name: e, op: reshape, in: p, shape: [batch]}
  - {name: c, op: greater, in: [p, p]}
  - OPS
  - {name: loss, op: reduce_mean, in: d}
train: {minimize: loss, METRICS, optimizer: {op: sgd, learning_rate: 0.1}}
"""
SUB = "{name: d, op: sub, in: [p, y]}"
RIGHT = "{name: d, op: sub, in: [e, y]}"


def spec(ops, metrics="epochs: 1"):
    return SPEC.replace("OPS", "\n  - ".join(ops)).replace("METRICS", metrics)


@pytest.mark.parametrize(
    ("ops", "metrics", "start"),
    [
        ([SUB], "epochs: 1", "model.yaml:8:12: sub 'd' combines each row of 'p'"),
        (["{name: d, op: sub, in: [y, p]}"], "epochs: 1", "model.yaml:8:12: sub 'd'"),
        *(
            ([f"{{name: d, op: {kind}, in: [p, y]}}"], "epochs: 1", "model.yaml:8:12: ")
            for kind in ("add", "mul", "div", "maximum", "minimum")
        ),
        (
            ["{name: d, op: where, in: [c, y, y]}"],
            "epochs: 1",
            "model.yaml:8:12: where",
        ),
        (
            [
                RIGHT,
                "{name: q, op: equal, in: [p, y]}",
                "{name: n, op: cast, in: q, dtype: float32}",
                "{name: hits, op: reduce_mean, in: n}",
            ],
            "metrics: [hits]",
            "model.yaml:9:12: equal 'q' combines",
        ),
        (
            [
                "{name: k, op: fc, in: x, size: 6}",
                "{name: w, op: reshape, in: k, shape: [batch, 1, 6]}",
                "{name: v, op: fc, in: x, size: 6}",
                "{name: d, op: sub, in: [w, v]}",
            ],
            "epochs: 1",
            "model.yaml:11:12: sub 'd' combines",
        ),
    ],
)
def test_rows_against_all_rows(ops, metrics, start, tmp_path):
    (text,) = find_row_pairs(
        load_text(spec(ops, metrics), "model.yaml", tmp_path).graph
    )
    assert text.startswith(start)


@pytest.mark.parametrize(
    "ops",
    [
        [RIGHT],
        ["{name: z, op: reshape, in: y, shape: [batch, 1]}", SUB.replace("y", "z")],
        ["{name: z, op: reshape, in: y, shape: [1, batch]}", SUB.replace("y", "z")],
        # Neither the loss nor a metric depends on the pairs.
        [RIGHT, "{name: pairs, op: sub, in: [p, y]}"],
    ],
    ids=["equal rows", "the first hint", "the second hint", "unused"],
)
def test_no_warning(ops, tmp_path):
    assert not find_row_pairs(load_text(spec(ops), "model.yaml", tmp_path).graph)


def test_a_python_warning_and_a_line_of_the_command(tmp_path, capsys):
    path = tmp_path / "model.yaml"
    path.write_text(spec([SUB]))
    with pytest.warns(placer.SpecWarning, match="all rows of 'y'") as caught:
        placer.compile(path, tmp_path / "build")
    assert caught[0].filename == __file__
    with pytest.warns(placer.SpecWarning) as caught, build_folder(path):
        pass
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as ended:
            main(["check", "--no-data", str(path)])
    assert ended.value.code == 0
    assert capsys.readouterr().err == (
        f"warning: {path}:8:12: sub 'd' combines each row of 'p' float32[batch, 1] with"
        " all rows of 'y' float32[batch], so its result is float32[batch, batch]\n"
        "  8 |   - {name: d, op: sub, in: [p, y]}\n"
        "    |            ^\n"
        "  hint: reshape 'y' to [batch, 1] to combine matching rows, or to [1, batch] if"
        " you intend all pairs\n"
    )


@MAY_PAIR_ROWS
def test_tests_of_drawn_models_ignore_this_warning_alone(tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(spec([SUB]))
    placer.compile(path, tmp_path / "build")
    with pytest.raises(placer.SpecWarning):
        warnings.warn("model.yaml:8:12: another one", placer.SpecWarning, stacklevel=1)
