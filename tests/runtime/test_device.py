"""A device that is not there is an error, not another device in silence."""

import jax
import pytest

import placer
from placer import RunError
from placer.files import find
from placer.runtime.process import run_in_threads


def has_gpu() -> bool:
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


@pytest.mark.skipif(
    has_gpu(), reason="this machine has the device that must be missing"
)
def test_a_node_without_its_device_says_which_platforms_it_found(tmp_path):
    text = find("specs/two_workers.yaml").read_text(encoding="utf-8")
    text = text.replace("{cpu: 1}", "{gpu: 1}").replace("/cpu", "/gpu")
    spec = tmp_path / "gpus.yaml"
    spec.write_text(text, encoding="utf-8")
    plan = placer.compile(spec, tmp_path / "build")
    assert [node.device for node in plan.nodes] == ["gpu:0", "gpu:0"]
    with pytest.raises(RunError) as caught:
        run_in_threads(tmp_path / "build")
    assert caught.value.message == "there is no gpu:0 here, only cpu"
