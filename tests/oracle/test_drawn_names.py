"""Models whose names are words of programs and of Python: a name changes no number."""

import ast
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.drawn.names import (
    FUNCTIONS,
    MODES,
    MODULES,
    PARAMETERS,
    VALUES,
    write_named,
)
from support.exported import load_prepare
from support.marks import MAY_PAIR_ROWS

import placer
from placer.compiler.emit.names import PYTHON_WORDS, RESERVED
from placer.compiler.frontend.entries.module_imports import NO_FUNCTIONS
from placer.compiler.frontend.entries.module_names import reserved_modules
from placer.compiler.frontend.entries.names import is_name
from placer.compiler.graph.structural_ops import VALUE_SUFFIXES
from placer.errors import SpecErrors
from placer.exporting.stablehlo import load_model
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
MANY = int(os.environ.get("PLACER_NAMES_EXAMPLES", "500"))
"""How many models the slow test draws. A persistent cache of JAX makes it quick, with
JAX_COMPILATION_CACHE_DIR and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0."""
STEPS = 4
GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = {slot: slot for slot in (*VALUES, *PARAMETERS, *MODULES, *FUNCTIONS)}
OUTPUTS = ("chance", "logits")
SINGLE = ("backup", "sparse_async", "lamb")
"""The modes whose models predict in one process."""
EXPORTED = ("servers", "sparse", "frozen")
"""The modes whose models are exported, too: exports depend on the ops only."""

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    MAY_PAIR_ROWS,
]


def programs(build):
    return sorted(build.glob("*/program*.py"))


def words_of(text):
    """Return the words of a program."""
    words = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word):
                words.add(word)
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word):
                words.add(word)
            case ast.keyword(arg=str(word)) | ast.alias(name=word):
                words.add(word)
            case ast.Constant(value=str(word)):
                words |= {*word.split()}
    return words


@cache
def words():
    """Return words of programs and of Python, and some that Python treats specially."""
    found = {*PYTHON_WORDS, *RESERVED, *dir(object), *dir(tuple), *VALUE_SUFFIXES}
    found |= {"_", "__", "_1", "__2", "__x", "_fields", "__file__", "__path__", "T"}
    found |= {
        "jnp",
        "np",
        "tables",
        "look_up",
        "prepare",
        "params",
        "rows_2",
        "program",
    }
    for file in GOLDEN.glob("**/*.py"):
        found |= words_of(file.read_text())
    return sorted(filter(is_name, found))


@cache
def words_of_mode(mode):
    """Return the words of the programs of a mode under plain names."""
    found = set()
    for program in programs(expected(mode)[1] / "build"):
        found |= words_of(program.read_text())
    return sorted(filter(is_name, found))


@st.composite
def names(draw, mode):
    """Draw a name for each slot: values are one namespace, parameters of an op,
    modules, and functions others."""
    word = st.sampled_from(words_of_mode(mode)) | st.sampled_from(words())
    chosen = {}
    for slots, invalid in (
        (VALUES, ()),
        (PARAMETERS, VALUE_SUFFIXES),
        (MODULES, reserved_modules()),
        (FUNCTIONS, {*NO_FUNCTIONS, "jnp", "TWO"}),
    ):
        valid = word.filter(lambda name, invalid=invalid: name not in invalid)
        size = len(slots)
        drawn = draw(st.lists(valid, min_size=size, max_size=size, unique=True))
        chosen |= dict(zip(slots, drawn, strict=True))
    return chosen


def run(mode, names, folder, *, order=None):
    """Train, evaluate, predict and export a model; return all numbers, in an order that
    does not depend on names."""
    build = folder / "build"
    plan = placer.compile(write_named(mode, names, folder), build)
    # An asynchronous run depends on the order of its messages.
    ordered = {}
    free = any(t.mode for node in plan.nodes for t in node.tables)
    if free or any(edge.first for edge in plan.step_edges):
        ordered = {"record_order": folder / "order"}
        if order is not None:
            ordered = {"replay_order": copy_order(order, folder / "replayed", build)}
    run_in_threads(
        build,
        Options(
            steps=STEPS,
            history=folder / "history.jsonl",
            save_params=folder / "saved.safetensors",
            checkpoint=folder / "checkpoints" if plan.sparse_tables else None,
            deadline=300.0,
            **ordered,
        ),
    )
    lines = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    numbers = {}
    for line in lines:
        step = line["step"]
        numbers |= {
            ("step", step, i): v for i, v in enumerate(line["metrics"].values())
        }
        measured = line.get("eval", {}).values()
        numbers |= {("eval", step, i): v for i, v in enumerate(measured)}
    saved = load_file(folder / "saved.safetensors")
    numbers |= {("saved", i): saved[p.name] for i, p in enumerate(plan.parameters)}
    with np.load(folder / "rows.npz") as opened:
        inputs = {name: opened[name] for name in opened}
    params = folder / "saved.safetensors"
    if plan.sparse_tables:
        params = folder / "checkpoints"
    found = placer.predict(
        build,
        inputs,
        params=params,
        raw=True,
        single_process=mode in SINGLE,
        in_process=True,
    )
    numbers |= {("predicted", slot): found[names[slot]] for slot in OUTPUTS}
    if mode in EXPORTED:
        numbers |= exported(build, folder, params, names, inputs)
    return numbers


def exported(build, folder, params, names, inputs):
    """Return what an exported model computes."""
    placer.export(build, folder / "model", params=params)
    path = [str(folder / "model"), *sys.path]
    known = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", path)
        try:
            arguments = load_prepare(folder / "model")(inputs)
            if (folder / "model" / "tables.py").exists():
                space = {"__file__": str(folder / "model" / "tables.py")}
                exec((folder / "model" / "tables.py").read_text(), space)
                arguments = space["look_up"](space["load_tables"](), **arguments)
            file = folder / "model" / "model.py"
            model = load_model(file.read_text(), file, [])
            params = load_file(folder / "model" / "params.safetensors")
            outputs = model(params, **arguments)
        finally:
            for name in {*sys.modules} - known:
                module = sys.modules[name]
                if str(getattr(module, "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]
    return {("exported", slot): np.asarray(outputs[names[slot]]) for slot in OUTPUTS}


def copy_order(order, out, build):
    """Copy an order to a build of the same model with other names, without the checksum at
    its end."""
    out.mkdir()
    digest = read_plan(build).digest
    for file in order.iterdir():
        recorded, *events, _ = file.read_text().splitlines()
        first = json.dumps(json.loads(recorded) | {"digest": digest})
        (out / file.name).write_text("\n".join([first, *events]) + "\n")
    return out


@cache
def expected(mode):
    """Return the numbers under plain names, and the folder of the build and the order."""
    folder = Path(tempfile.mkdtemp())
    return run(mode, PLAIN, folder), folder


def check(mode, names):
    """Compare a model with the same one under plain names."""
    wanted, plain = expected(mode)
    with tempfile.TemporaryDirectory() as name:
        numbers = run(mode, PLAIN | names, Path(name), order=plain / "order")
    assert numbers.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(
            numbers[key], value, rtol=2e-5, atol=2e-6, err_msg=str(key)
        )


KNOWN = {
    "async": {
        "x": "share",
        "low": "message",
        "high": "_",
        "joined": "node",
        "y": "_1",
        "logits": "__class__",
        "loss": "__debug__",
        "chance": "serve",
        "mine": "Fc",
        "weight": "_fields",
        "offset": "index",
        "layers": "serve",
        "measures": "program",
        "constants": "jnp",
        "affine": "ops",
    },
    "microbatches": {
        "x": "rows",
        "low": "task",
        "high": "s_low",
        "joined": "g_low_w",
        "y": "g",
        "logits": "count",
        "loss": "p",
        "hits": "s_loss",
        "chance": "__file__",
        "cell": "_1",
        "weight": "count",
        "layers": "predict",
        "constants": "plan",
    },
}
"""Names that have another meaning in programs of a mode, or in Python."""


@pytest.mark.parametrize("mode", KNOWN)
def test_words_of_programs_are_names(mode):
    check(mode, KNOWN[mode])


@pytest.mark.parametrize("mode", KNOWN)
@given(data=st.data())
@settings(SETTINGS, max_examples=1, derandomize=True)
def test_a_drawn_name_changes_no_number(mode, data):
    check(mode, data.draw(names(mode)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(SETTINGS, max_examples=MANY // len(MODES))
def test_many_drawn_names_change_no_number(mode, data):
    check(mode, data.draw(names(mode)))


@pytest.mark.parametrize("module", ["msgspec", "scipy", "random", "__main__"])
def test_a_module_that_nodes_have_already_is_refused(tmp_path, module):
    """Also one that another module imports."""
    file = write_named("servers", PLAIN, tmp_path)
    (tmp_path / f"{module}.py").write_text("TWO = 2.0\n")
    for text, message in (
        (f"import {module}", f"layers.py imports '{module}', but nodes would import"),
        ("", "a module next to the spec cannot be called"),
    ):
        (tmp_path / "layers.py").write_text(text)
        if not text:
            file.write_text(file.read_text().replace("layers:affine", f"{module}:f"))
        with pytest.raises(SpecErrors, match=message) as caught:
            placer.compile(file, tmp_path / "build")
        assert f"rename {module}.py" in str(caught.value)
