"""FILE.py:FUNCTION where a spec is asked for: what runs, and what is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.builds import files

import placer
from placer import place_guard
from placer.command.cli import main
from placer.resources import find

MODEL = """\
from dataclasses import dataclass

from layers_beside import WIDTH, hidden
from placer import Program, layers, optimizer, place_guard


@dataclass
class Sizes:
    classes: int = 10


def build():
    with Program(
        nodes={"worker": {"count": 2}, "ps": {}},
        data={"train": {"source": "python:rows:train", "batch": 8}},
    ) as program:
        x = layers.data("x", "float32[batch, 4]")
        label = layers.data("label", "int32[batch]")
        with place_guard("/node:worker/cpu"):
            h = hidden(x)
            h = layers.call("rows:twice", h, out=f"float32[batch, {WIDTH}]", batch="rows")
            logits = layers.fc(h, Sizes().classes)
            loss = layers.softmax_cross_entropy(logits, label)
        optimizer.SGD(0.1).minimize(loss)
    return program
"""
BESIDE = """\
from placer import layers

WIDTH = 6


def hidden(x):
    return layers.fc(x, WIDTH, activation="relu")
"""
ROWS = """\
def train():
    for i in range(16):
        yield {"x": [i % 2, i % 3, i % 4, 1], "label": i % 10}


def twice(params, state, x, *, rng, training):
    return 2 * x, state
"""


@dataclass(frozen=True)
class Told:
    """What a command line wrote, and its exit status."""

    status: object
    out: str
    err: str


Tell = Callable[..., Told]


@pytest.fixture
def tell(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Tell:
    """Runs a command line in a folder that holds MODEL and what it names."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "layers_beside.py").write_text(BESIDE)
    (tmp_path / "rows.py").write_text(ROWS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Told:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Told(ended.value.code, out, err)

    return run


def test_a_function_of_a_file_is_compiled(tell: Tell, tmp_path: Path) -> None:
    told = tell("compile", "model.py:build", "--out", "build")
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith("model: 3 programs (worker:0-1, ps:0)")
    build = tmp_path / "build"
    assert (build / "rows.py").read_text() == ROWS
    assert not (build / "model.py").exists()
    result = placer.launch(build, in_process=True)
    assert result.steps == 2


def test_its_yaml_is_compiled_to_the_same_bytes(tell: Tell, tmp_path: Path) -> None:
    assert tell("to-yaml", "model.py:build", "--out", "spec.yaml") == Told(0, "", "")
    printed = tell("to-yaml", "model.py:build")
    assert (tmp_path / "spec.yaml").read_text() == printed.out
    assert tell("compile", "model.py:build", "--out", "python").status == 0
    assert tell("compile", "spec.yaml", "--out", "yaml").status == 0
    assert files(tmp_path / "python") == files(tmp_path / "yaml")


def test_the_other_commands_take_it_too(tell: Tell) -> None:
    told = tell("check", "model.py:build")
    assert told.out.startswith("model.py:build: ok: 3 programs")
    assert "softmax_cross_entropy" in tell("show", "model.py:build").out
    told = tell("explain", "model.py:build", "fc_1")
    assert "written at model.py:22:22" in told.out
    told = tell("check", "model.py:build", "--nodes", "worker=4")
    assert "worker:0-3" in told.out


def test_an_op_of_a_module_beside_it_is_not_told_to_be_of_the_file(tell: Tell) -> None:
    assert "written at" not in tell("explain", "model.py:build", "fc_0").out


def test_nothing_of_the_file_stays(tell: Tell, tmp_path: Path) -> None:
    path, modules = list(sys.path), set(sys.modules)
    assert tell("check", "model.py:build").status == 0
    assert sys.path == path
    assert not {n for n in set(sys.modules) - modules if "model" in n or "beside" in n}
    assert "layers_beside" not in sys.modules
    assert not list(tmp_path.rglob("*.pyc"))


def test_guards_and_programs_around_the_call_are_not_those_of_the_file(
    tell: Tell, tmp_path: Path
) -> None:
    with placer.Program(), place_guard("/node:ps"):
        assert "place: /node:worker/cpu" in tell("to-yaml", "model.py:build").out


def test_the_library_takes_it_too(tell: Tell, tmp_path: Path) -> None:
    plan = placer.compile(tmp_path / "model.py:build", tmp_path / "build")
    assert plan.name == "model"


BUILD = "from placer import Program, layers\n\n\ndef build():\n"
HEAVY = """
import sys
from placer.command import main
try:
    main(sys.argv[1:])
finally:
    print({"jax", "numpy", "rich", "zmq"} & set(sys.modules))
"""


def test_compiling_a_file_imports_nothing_heavy(tmp_path: Path) -> None:
    model = f"{find('specs/digits.py')}:build"
    told = subprocess.run(
        [sys.executable, "-c", HEAVY, "compile", model, "--out", tmp_path / "build"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines()[-1] == "set()"


FAILURES = {
    "a mistake in an op": (
        BUILD + "    layers.relu(3)\n",
        "own.py:build",
        """\
own.py:5:5: 'x' of relu must be a value of the program, not 3
  5 |     layers.relu(3)
    |     ^^^^^^^^^^^^^^
""",
    ),
    "an error of its own": (
        BUILD + "    return {}['nodes']\n",
        "own.py:build",
        """\
own.py:5:12: KeyError: 'nodes'
  5 |     return {}['nodes']
    |            ^^^^^^^^^^^
""",
    ),
    "an error in a library": (
        BUILD + "    import json\n    json.loads('{')\n",
        "own.py:build",
        """\
own.py:6:5: JSONDecodeError: Expecting property name enclosed in double quotes: \
line 1 column 2 (char 1)
  6 |     json.loads('{')
    |     ^^^^^^^^^^^^^^^
""",
    ),
    "an error of placer that knows no line": (
        BUILD + "    from placer import Place\n    Place.parse('/gpu:')\n",
        "own.py:build",
        """\
own.py:6:5: an id is missing after ':'
  6 |     Place.parse('/gpu:')
    |     ^^^^^^^^^^^^^^^^^^^^
  hint: ids are * or a list of numbers and ranges, such as 0,2-3
""",
    ),
    "a missing argument": (
        BUILD + "    layers.fc()\n",
        "own.py:build",
        """\
own.py:5:5: TypeError: fc() missing 2 required positional arguments: 'x' and 'size'
  5 |     layers.fc()
    |     ^^^^^^^^^^^
""",
    ),
    "an exit": (
        BUILD + "    raise SystemExit(0)\n",
        "own.py:build",
        """\
own.py:5:5: SystemExit: 0
  5 |     raise SystemExit(0)
    |     ^^^^^^^^^^^^^^^^^^^
""",
    ),
    "an error as it is imported": (
        "x = 1\ny = x / 0\n",
        "own.py:build",
        """\
own.py:2:5: ZeroDivisionError: division by zero
  2 | y = x / 0
    |     ^^^^^
""",
    ),
    "a module that is not there": (
        "import no_such_module\n",
        "own.py:build",
        """\
own.py:1:1: ModuleNotFoundError: No module named 'no_such_module'
  1 | import no_such_module
    | ^^^^^^^^^^^^^^^^^^^^^
  hint: pip install no_such_module; a module of your own has to be beside the spec
""",
    ),
    "no Python": (
        "def build():\n    return (1\n",
        "own.py:build",
        """\
own.py:2:12: SyntaxError: '(' was never closed
  2 |     return (1
    |            ^
""",
    ),
    "a misspelt function": (
        BUILD + "    return 3\n",
        "own.py:biuld",
        "own.py has no function 'biuld'\n  hint: did you mean 'build'?\n",
    ),
    "something else that is returned": (
        BUILD + "    return 3\n",
        "own.py:build",
        "own.py:build returns int, not Program\n"
        "  hint: return the Program, or None for the default one\n",
    ),
    "nothing that is returned": (
        BUILD + "    with Program(): pass\n",
        "own.py:build",
        "own.py:build returns no program, and no op was called outside of one\n"
        "  hint: return the Program\n",
    ),
    "ops outside of what is returned": (
        BUILD + "    program = Program()\n"
        '    layers.relu(layers.data("x", "float32[batch, 4]"))\n    return program\n',
        "own.py:build",
        "own.py:build returns a program without an op, and calls ops outside of it\n"
        "  hint: write `with program:` around them\n",
    ),
    "an op that is not there": (
        BUILD + "    layers.softmax_crossentropy(1)\n",
        "own.py:build",
        """\
own.py:LINE:5: AttributeError: module 'placer.layers' has no attribute 'softmax_crossentropy'
  LINE |     layers.softmax_crossentropy(1)
    |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: did you mean 'softmax_cross_entropy'?
""".replace("LINE", str(BUILD.count("\n") + 1)),
    ),
    "an argument that nobody gives": (
        "def build(size): ...\n",
        "own.py:build",
        "own.py:build is called without arguments: missing a required argument: 'size'\n"
        "  hint: give its parameters defaults\n",
    ),
    "no function said": (
        "x = 1\n",
        "own.py",
        "'own.py' does not say which function of a file builds the model\n"
        "  hint: write own.py:build\n",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_told_at_the_users_line(
    tell: Tell, tmp_path: Path, failure: str
) -> None:
    text, argument, message = FAILURES[failure]
    (tmp_path / "own.py").write_text(text)
    assert tell("check", argument) == Told(2, "", message)


def test_a_function_of_jax_says_that_it_takes_no_value(
    tell: Tell, tmp_path: Path
) -> None:
    text = BUILD + (
        "    import jax.numpy as jnp\n"
        '    jnp.tanh(layers.data("x", "float32[batch, 4]"))\n'
    )
    (tmp_path / "own.py").write_text(text)
    told = tell("check", "own.py:build").err
    assert told.startswith(f"own.py:{text.count(chr(10))}:5: TypeError: ")
    assert "placer.trace(fn, ...) of a function" in told


def test_a_failure_in_a_module_beside_it_is_told_there(
    tell: Tell, tmp_path: Path
) -> None:
    (tmp_path / "layers_beside.py").write_text(BESIDE.replace("WIDTH,", "-1,"))
    told = tell("check", "model.py:build")
    assert told.err.startswith("layers_beside.py:7:12: op 'fc_0': fc needs a size")


def test_debug_shows_the_traceback(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BUILD + "    return 1 / 0\n")
    told = tell("check", "own.py:build", "--debug")
    assert told.status == 2
    assert "Traceback (most recent call last):" in told.err
    assert 'own.py", line 5, in build' in told.err


def test_a_file_that_is_not_there(tell: Tell) -> None:
    told = tell("check", "no.py:build")
    assert told.status == 2
    assert "'no.py' does not exist" in told.err
    with pytest.raises(placer.SpecError, match=r"there is no file no\.py"):
        placer.compile("no.py:build", "build")


def test_a_spec_stands_beside_the_files_that_it_names(
    tell: Tell, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    told = tell("to-yaml", "model.py:build", "--out", "elsewhere/spec.yaml")
    assert told == Told(
        2,
        "",
        "elsewhere/spec.yaml is not in the folder of model.py, whose files it names\n"
        "  hint: data and modules are found beside the spec: write it there\n",
    )
    assert not (tmp_path / "elsewhere" / "spec.yaml").exists()


def test_a_yaml_that_cannot_be_written_is_told(tell: Tell) -> None:
    told = tell("to-yaml", "model.py:build", "--out", "none/spec.yaml")
    assert told.status == 2


def test_to_yaml_takes_no_spec(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\n")
    told = tell("to-yaml", "spec.yaml")
    assert told == Told(
        2,
        "",
        "'spec.yaml' does not say which function of a file builds the model\n"
        "  hint: write model.py:build\n",
    )
