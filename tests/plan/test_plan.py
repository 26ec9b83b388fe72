"""plan.json: its digest, what is refused, and its byte counts compared with a run."""

import json
import shutil

import numpy as np
import pytest
from support.small_models import load_model, two_layers

from placer.channel.in_process import MemoryChannel
from placer.compiler.driver import compile as compile_model
from placer.compiler.frontend import load
from placer.errors import BuildError
from placer.plan.plan import read_plan
from placer.runtime.control.barrier import DONE, GO
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.system.resources import find_file

W0, W1 = "/node:worker:0/cpu", "/node:worker:1/cpu"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "build"
    compile_model(load(find_file("specs/digits.yaml")), folder)
    return folder


@pytest.fixture
def build(digits, tmp_path):
    """A copy of a build that a test may change."""
    return shutil.copytree(digits, tmp_path / "build")


def test_the_digest_depends_on_the_spec_and_on_nothing_else(tmp_path):
    first = compile_model(load_model(two_layers()), tmp_path / "a")
    again = compile_model(load_model(two_layers()), tmp_path / "deeper" / "b")
    other = compile_model(load_model(two_layers(batch=16)), tmp_path / "c")
    assert first.digest == again.digest
    assert first.digest != other.digest


def refusal(build):
    with pytest.raises(BuildError) as caught:
        read_plan(build)
    hint = f"\n  hint: {caught.value.hint}" if caught.value.hint else ""
    return caught.value.message.replace(str(build), "BUILD") + hint


EDITED = "\n  hint: change the spec, not the build, and compile again"


@pytest.mark.parametrize(
    "file", ["worker-0/program.py", "ps-1/program.py", "graph.txt"]
)
def test_an_edited_file_is_refused(file, build):
    path = build / file
    path.write_text(path.read_text() + "\n# mine\n")
    assert refusal(build) == f"'BUILD/{file}' was changed after it was compiled{EDITED}"


def test_an_edited_plan_is_refused(build):
    path = build / "plan.json"
    path.write_text(path.read_text().replace('"epochs": 20', '"epochs": 21'))
    assert (
        refusal(build) == f"'BUILD/plan.json' was changed after it was compiled{EDITED}"
    )


def test_a_missing_file_is_refused(build):
    (build / "ps-0/program.py").unlink()
    assert refusal(build) == (
        "'BUILD/ps-0/program.py' is missing\n  hint: compile the spec again"
    )


def test_a_link_is_refused(build):
    program = build / "ps-0/program.py"
    kept = program.rename(build / "kept.py")
    program.symlink_to(kept)
    assert refusal(build) == (
        "'BUILD/ps-0/program.py' is a link; links are not allowed in a build folder"
    )


def test_a_folder_that_is_a_link_is_refused(build):
    (build / "ps-0").rename(build / "elsewhere")
    (build / "ps-0").symlink_to(build / "elsewhere")
    assert refusal(build) == (
        "'BUILD/ps-0' is a link; links are not allowed in a build folder"
    )


def test_a_folder_without_a_plan_is_not_a_build(tmp_path):
    assert refusal(tmp_path) == (
        "'BUILD' is not a build folder: it has no plan.json\n"
        "  hint: create one with: placer compile SPEC --out FOLDER"
    )
    (tmp_path / "model.yaml").touch()
    assert "run a spec with placer.train" in refusal(tmp_path / "model.yaml")


@pytest.mark.parametrize("version", ["2", '"3"', "null"])
def test_a_plan_of_another_version_is_refused(version, build):
    path = build / "plan.json"
    text = path.read_text()
    assert '"version": 3,' in text
    path.write_text(text.replace('"version": 3,', f'"version": {version},', 1))
    shown = {"null": "None", '"3"': "3"}.get(version, version)
    assert refusal(build) == (
        f"'BUILD' has plan version {shown}, this placer reads 3\n"
        "  hint: compile the spec again"
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"null"])
def test_an_invalid_plan_is_refused(content, build):
    (build / "plan.json").write_bytes(content)
    message = refusal(build)
    assert message.startswith(
        ("'BUILD/plan.json' cannot be read: ", "'BUILD' has plan version None")
    )


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ({"type": "half_async"}, "was changed after it was compiled"),
        ({"type": "half_async", "queue": 3}, "contains unknown field `queue`"),
        ({"type": "async", "merge": "mean"}, "'merge: mean' has no effect"),
        ({"type": "geo", "every": 2, "scale": "sum", "outer": {}}, "not their sum"),
    ],
)
def test_settings_of_a_mode_without_effect_are_refused(mode, why, build):
    plan = json.loads((build / "plan.json").read_text())
    plan["nodes"][2]["tables"][0]["mode"] = mode
    (build / "plan.json").write_text(json.dumps(plan))
    assert why in refusal(build)


def test_a_folder_with_other_files_is_not_written_into(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BuildError, match="contains files, but is not a build"):
        compile_model(load_model(two_layers()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_choices_include_parameters_that_the_loss_does_not_depend_on(tmp_path):
    side = "  - {name: side, op: fc, in: h, size: 4}"
    alone = "  - {name: alone, op: parameter, shape: [2], init: zeros}"
    text = two_layers(extra=f"{side}\n{alone}")
    plan = compile_model(load_model(text), tmp_path)
    trained = {parameter.name: parameter.trainable for parameter in plan.parameters}
    untrained = {"side.w", "side.b", "alone"}
    assert {name for name, is_trained in trained.items() if not is_trained} == untrained
    reasons = {choice.what.split()[0]: choice.why for choice in plan.choices}
    why = "not trained, since the loss does not depend on it"
    assert reasons["side.w"] == f"{why}: it follows the first op that uses it"
    assert reasons["alone"] == f"{why}: no op uses it"


def test_choices_include_parameters_that_are_not_trained(tmp_path):
    fixed = "parameters:\n  - {match: h.w, trainable: false}\ntrain:"
    text = two_layers().replace("train:\n  minimize", f"{fixed}\n  minimize")
    plan = compile_model(load_model(text), tmp_path)
    trained = {parameter.name: parameter.trainable for parameter in plan.parameters}
    assert trained == {"h.w": False, "h.b": True, "out.w": True, "out.b": True}
    reasons = {choice.what.split()[0]: choice.why for choice in plan.choices}
    assert reasons["h.w"] == "not trained: it follows the first op that uses it"


EVAL = '  eval: {source: "npz:rows.npz", batch: 6, remainder: drop}\ngraph:\n'
SENT = {
    "servers": two_layers(),
    "small blocks, clipped": two_layers(
        train="  clip: {global_norm: 1.0}\n  slicing: {min_block: 8}"
    ),
    "adam on the workers": two_layers(
        optimizer="{op: adam, learning_rate: 0.1, place: /node:worker}"
    ),
    "state on ranges of the workers, clipped": two_layers(
        nodes="{worker: {count: 2}}",
        optimizer="{op: adam, learning_rate: 0.1, shard_state: true}",
        train="  clip: {global_norm: 1.0}",
    ),
    "a ring": two_layers(
        nodes="{worker: {count: 2}}",
        optimizer="{op: adam, learning_rate: 0.1, all_reduce: ring}",
    ),
    "a layer each": two_layers(first=W0, second=W1),
    "rows scattered": two_layers(first=W0),
    "rows gathered": two_layers(second=W1),
    "rows on fewer workers": two_layers(
        nodes="{worker: {count: 4}, ps: {count: 1}}", second="/node:worker:0-1"
    ).replace("batch: 6", "batch: 4"),
    "a loss that is R": two_layers(
        extra="  - {name: m, op: matmul, in: [h, h], transpose_b: true}\n"
        "  - {name: mean, op: reduce_mean, in: m}\n"
        "  - {name: root, op: sqrt, in: loss}\n"
        "  - {name: all, op: add, in: [root, mean]}"
    ).replace("minimize: loss", "minimize: all"),
}


@pytest.mark.parametrize("placement", SENT)
def test_a_run_sends_the_bytes_of_the_plan(placement, tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    rows = {"x": random.normal(size=(24, 16)), "y": random.normal(size=(24, 4))}
    rows = {name: array.astype(np.float32) for name, array in rows.items()}
    np.savez(tmp_path / "rows.npz", **rows)
    batch = 8 if "fewer" in placement else 6
    text = SENT[placement].replace("graph:\n", EVAL.replace("6", str(batch)), 1)
    plan = compile_model(load_model(text, tmp_path), tmp_path / "build")

    sent = []
    send = MemoryChannel.send

    def counting(self, to, key, arrays, **options):
        nbytes = sum(array.nbytes for array in arrays)
        sent.append((self.node, key, nbytes))
        send(self, to, key, arrays, **options)

    monkeypatch.setattr(MemoryChannel, "send", counting)
    result = run_in_threads(tmp_path / "build", Options(steps=4))

    of_edge = {}
    for _, key, nbytes in sent:
        of_edge[key.edge] = of_edge.get(key.edge, 0) + nbytes
    evaluations = 2  # at the end of the first epoch of 3 steps, and after the last step
    for edge in plan.step_edges:
        assert of_edge.pop(edge.id) == 4 * edge.nbytes, edge
    for edge in plan.evaluation_edges:
        times = evaluations * (1 if edge.once else 24 // batch)
        assert of_edge.pop(edge.id) == times * edge.nbytes, edge
    assert all(edge < 0 for edge in of_edge)

    for node in plan.nodes:
        counted = sum(
            nbytes
            for source, key, nbytes in sent
            if source == node.name
            and key.edge != DONE
            and (key.edge, key.step) != (GO, DONE)
        )
        assert result.bytes_sent[node.name] == counted


def test_values_with_the_same_nodes_are_one_message(tmp_path, monkeypatch):
    rows = {"x": np.zeros((8, 16), np.float32), "y": np.zeros((8, 4), np.float32)}
    np.savez(tmp_path / "rows.npz", **rows)
    text = two_layers(nodes="{worker: {count: 2}, ps: {count: 1}}")
    compile_model(load_model(text, tmp_path), tmp_path / "build")
    sent = []
    send = MemoryChannel.send

    def counting(self, to, key, arrays, **options):
        if key.edge > 0:
            sent.append((self.node, to, len(arrays)))
        send(self, to, key, arrays, **options)

    monkeypatch.setattr(MemoryChannel, "send", counting)
    run_in_threads(tmp_path / "build", Options(steps=1))
    assert sorted(sent) == [
        ("ps:0", "worker:0", 4),
        ("ps:0", "worker:1", 4),
        ("worker:0", "ps:0", 4),
        ("worker:1", "ps:0", 4),
    ]
