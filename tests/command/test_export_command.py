"""placer export on the command line."""

import pytest
from safetensors.numpy import save_file
from support.spec_models import SPECS, initial_parameters

import placer
from placer.command.cli import main


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    plan = placer.compile(SPECS / "digits.yaml", folder / "build")
    save_file(initial_parameters(plan), folder / "params")
    return folder / "params"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["export", *map(str, arguments)])
    return ended.value.code, capsys.readouterr()


def test_a_spec_is_compiled_and_exported(params, tmp_path, capsys):
    out = tmp_path / "model"
    spec = SPECS / "digits.yaml"
    status, text = run(
        capsys, spec, "--params", params, "--out", out, "--outputs", "h1,logits"
    )
    assert status == 0, text.err
    assert text.out == (
        "model(params, image) -> h1, logits\n"
        f"  written to {out}: README.md, model.py, model.stablehlo, ops, params.py,"
        " params.safetensors, postprocess.py, prepare.py\n"
    )
    assert len([*out.iterdir()]) == 8


@pytest.mark.parametrize("batch", ["0", "1,", "-1", "many"])
def test_a_batch_that_is_no_number_of_rows_is_refused(batch, params, tmp_path, capsys):
    spec, out = SPECS / "digits.yaml", tmp_path / "model"
    status, text = run(capsys, spec, "--params", params, "--out", out, "--batch", batch)
    assert status == 2
    assert "is not a list of batch sizes, such as 1,32" in text.err
    assert not out.exists()


def test_a_file_that_is_not_of_parameters_is_refused(tmp_path, capsys):
    (tmp_path / "params").write_text("no parameters")
    spec, out = SPECS / "digits.yaml", tmp_path / "model"
    status, text = run(capsys, spec, "--params", tmp_path / "params", "--out", out)
    assert status == 2
    assert "cannot be read as parameters" in text.err
    assert [path.name for path in tmp_path.iterdir()] == ["params"]
