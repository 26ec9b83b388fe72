"""What a step takes, against what the spec says a device holds."""

from pathlib import Path

import pytest

from placer import SpecError, compile
from placer.files import find

DIGITS = find("specs/digits.yaml").read_text(encoding="utf-8")


def with_memory(folder: Path, size: str) -> Path:
    file = folder / "digits.yaml"
    devices = f"{{cpu: {{count: 1, memory: {size}}}}}"
    file.write_text(DIGITS.replace("{cpu: 1}", devices), encoding="utf-8")
    return file


def test_a_step_that_does_not_fit_a_device_is_refused_at_its_memory(tmp_path):
    with pytest.raises(SpecError) as caught:
        compile(with_memory(tmp_path, "100KiB"), tmp_path / "build")
    assert caught.value.message == (
        "a step on worker:0 needs 169,824 bytes of cpu:0, which holds 102,400"
    )
    assert caught.value.span is not None
    assert caught.value.span.text[caught.value.span.column - 1 :].startswith("100KiB")
    assert not (tmp_path / "build").exists()


def test_a_step_that_fits_is_compiled(tmp_path):
    plan = compile(with_memory(tmp_path, "1MiB"), tmp_path / "build")
    assert plan.nodes[0].activation_bytes == 169_824
    assert plan.nodes[0].table_bytes == 0


def test_one_process_is_not_held_to_what_the_nodes_have(tmp_path):
    file = with_memory(tmp_path, "100KiB")
    compile(file, tmp_path / "build", single_process=True)


def test_the_peak_counts_values_while_they_are_used(tmp_path):
    """Worker: the received parameters, its rows, and what forward keeps, until used."""
    plan = compile(with_memory(tmp_path, "1GiB"), tmp_path / "build")
    parameters = (64 * 128 + 128 + 128 * 10 + 10) * 4
    rows = 64 * 64 * 4 + 64 * 4
    kept = (
        64 * 128 * 4 + 64 * 128 + 2 * 64 * 10 * 4
    )  # h1, its mask, logits, its residual
    for node in plan.nodes[:2]:
        assert (
            parameters + rows + kept
            <= node.activation_bytes
            <= 2 * parameters + rows + 2 * kept
        )
