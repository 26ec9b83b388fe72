"""FILE.py:FUNCTION instead of a spec: the code that runs, and the errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.builds import build_files

import placer
from placer import layers, optimizer, place_guard
from placer.command.cli import main
from placer.compiler.frontend.python.code_hints import hint_for
from placer.system.resources import find_file

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
class CommandResult:
    """The output of a command, and its exit status."""

    status: object
    out: str
    err: str


RunCommand = Callable[..., CommandResult]


@pytest.fixture
def run_command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> RunCommand:
    """Runs a command in a folder with MODEL and the files that it uses."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "layers_beside.py").write_text(BESIDE)
    (tmp_path / "rows.py").write_text(ROWS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> CommandResult:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return CommandResult(ended.value.code, out, err)

    return run


def test_a_function_of_a_file_is_compiled(
    run_command: RunCommand, tmp_path: Path
) -> None:
    result = run_command("compile", "model.py:build", "--out", "build")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("model: 3 programs (worker:0-1, ps:0)")
    build = tmp_path / "build"
    assert (build / "rows.py").read_text() == ROWS
    assert not (build / "model.py").exists()
    run_result = placer.launch(build, in_process=True)
    assert run_result.steps == 2


def test_its_yaml_is_compiled_to_the_same_bytes(
    run_command: RunCommand, tmp_path: Path
) -> None:
    assert run_command(
        "to-yaml", "model.py:build", "--out", "spec.yaml"
    ) == CommandResult(0, "", "")
    printed = run_command("to-yaml", "model.py:build")
    assert (tmp_path / "spec.yaml").read_text() == printed.out
    assert run_command("compile", "model.py:build", "--out", "python").status == 0
    assert run_command("compile", "spec.yaml", "--out", "yaml").status == 0
    assert build_files(tmp_path / "python") == build_files(tmp_path / "yaml")


def test_the_other_commands_accept_it(run_command: RunCommand) -> None:
    result = run_command("check", "model.py:build")
    assert result.out.startswith("model.py:build: ok: 3 programs")
    assert (
        "softmax_cross_entropy"
        in run_command("show", "model.py:build", "--summary").out
    )
    result = run_command("explain", "model.py:build", "fc_1")
    assert "written at model.py:22:22" in result.out
    result = run_command("check", "model.py:build", "--nodes", "worker=4")
    assert "worker:0-3" in result.out


def test_an_op_of_another_module_is_not_reported_as_of_the_file(
    run_command: RunCommand,
) -> None:
    assert "written at" not in run_command("explain", "model.py:build", "fc_0").out


def test_nothing_of_the_file_remains_imported(
    run_command: RunCommand, tmp_path: Path
) -> None:
    path, modules = list(sys.path), set(sys.modules)
    assert run_command("check", "model.py:build").status == 0
    assert sys.path == path
    assert not {n for n in set(sys.modules) - modules if "model" in n or "beside" in n}
    assert "layers_beside" not in sys.modules
    assert not list(tmp_path.rglob("*.pyc"))


def test_guards_and_programs_around_the_call_do_not_affect_the_file(
    run_command: RunCommand, tmp_path: Path
) -> None:
    with placer.Program(), place_guard("/node:ps"):
        assert "place: /node:worker/cpu" in run_command("to-yaml", "model.py:build").out


def test_the_library_accepts_it(run_command: RunCommand, tmp_path: Path) -> None:
    plan = placer.compile(tmp_path / "model.py:build", tmp_path / "build")
    assert plan.name == "model"


BUILD = "from placer import Program, layers\n\n\ndef build():\n"
HEAVY = """
import sys
from placer.command import main
try:
    main(sys.argv[1:])
finally:
    print({"jax", "numpy", "rich"} & set(sys.modules))
"""


def test_compiling_a_file_imports_no_heavy_packages(tmp_path: Path) -> None:
    model = f"{find_file('specs/digits.py')}:build"
    result = subprocess.run(
        [sys.executable, "-c", HEAVY, "compile", model, "--out", tmp_path / "build"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "set()"


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
    "an error of placer without a line": (
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
    "an error during the import": (
        "x = 1\ny = x / 0\n",
        "own.py:build",
        """\
own.py:2:5: ZeroDivisionError: division by zero
  2 | y = x / 0
    |     ^^^^^
""",
    ),
    "a missing module": (
        "import no_such_module\n",
        "own.py:build",
        """\
own.py:1:1: ModuleNotFoundError: No module named 'no_such_module'
  1 | import no_such_module
    | ^^^^^^^^^^^^^^^^^^^^^
  hint: pip install no_such_module; your own modules must be in the folder of the spec
""",
    ),
    "a syntax error": (
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
    "another return value": (
        BUILD + "    return 3\n",
        "own.py:build",
        "own.py:build returns int, not Program\n"
        "  hint: return the Program, or None for the default program\n",
    ),
    "no return value": (
        BUILD + "    with Program(): pass\n",
        "own.py:build",
        "own.py:build returns no program, and the default program has no ops\n"
        "  hint: return the Program\n",
    ),
    "ops outside of the returned program": (
        BUILD + "    program = Program()\n"
        '    layers.relu(layers.data("x", "float32[batch, 4]"))\n    return program\n',
        "own.py:build",
        "own.py:build returns a program without ops, but calls ops outside of it\n"
        "  hint: wrap these calls in `with program:`\n",
    ),
    "an unknown op": (
        BUILD + "    layers.softmax_crossentropy(1)\n",
        "own.py:build",
        """\
own.py:LINE:5: AttributeError: module 'placer.layers' has no attribute 'softmax_crossentropy'
  LINE |     layers.softmax_crossentropy(1)
    |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: did you mean 'softmax_cross_entropy'?
""".replace("LINE", str(BUILD.count("\n") + 1)),
    ),
    "a required argument": (
        "def build(size): ...\n",
        "own.py:build",
        "own.py:build cannot be called without arguments: missing a required argument: 'size'\n"
        "  hint: give each of its parameters a default\n",
    ),
    "no function name": (
        "x = 1\n",
        "own.py",
        "'own.py' does not name the function that builds the model\n"
        "  hint: write own.py:build\n",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_reported_at_the_line_of_the_user(
    run_command: RunCommand, tmp_path: Path, failure: str
) -> None:
    text, argument, message = FAILURES[failure]
    (tmp_path / "own.py").write_text(text)
    assert run_command("check", argument) == CommandResult(2, "", message)


def test_a_function_of_jax_does_not_accept_values(
    run_command: RunCommand, tmp_path: Path
) -> None:
    text = BUILD + (
        "    import jax.numpy as jnp\n"
        '    jnp.tanh(layers.data("x", "float32[batch, 4]"))\n'
    )
    (tmp_path / "own.py").write_text(text)
    result = run_command("check", "own.py:build").err
    assert result.startswith(f"own.py:{text.count(chr(10))}:5: TypeError: ")
    assert "a JAX function with placer.trace(fn, ...)" in result


def test_a_failure_in_another_module_is_reported_there(
    run_command: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / "layers_beside.py").write_text(BESIDE.replace("WIDTH,", "-1,"))
    result = run_command("check", "model.py:build")
    assert result.err.startswith("layers_beside.py:7:12: op 'fc_0': fc needs a size")


def test_debug_shows_the_traceback(run_command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BUILD + "    return 1 / 0\n")
    result = run_command("check", "own.py:build", "--debug")
    assert result.status == 2
    assert "Traceback (most recent call last):" in result.err
    assert 'own.py", line 5, in build' in result.err


def test_a_missing_file(run_command: RunCommand) -> None:
    result = run_command("check", "no.py:build")
    assert result.status == 2
    assert "'no.py' does not exist" in result.err
    with pytest.raises(placer.SpecError, match=r"no\.py does not exist"):
        placer.compile("no.py:build", "build")


def test_a_spec_is_written_beside_the_files_that_it_names(
    run_command: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    result = run_command("to-yaml", "model.py:build", "--out", "elsewhere/spec.yaml")
    assert result == CommandResult(
        2,
        "",
        "elsewhere/spec.yaml is not in the folder of model.py, but refers to files there\n"
        "  hint: write the spec to that folder: its data and modules are read from the "
        "folder of the spec\n",
    )
    assert not (tmp_path / "elsewhere" / "spec.yaml").exists()


def test_a_program_that_yaml_cannot_express_is_an_error(
    run_command: RunCommand,
) -> None:
    result = run_command("to-yaml", "model.py:build", "--out", "none/spec.yaml")
    assert result.status == 2


def test_to_yaml_does_not_accept_a_spec(
    run_command: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\n")
    result = run_command("to-yaml", "spec.yaml")
    assert result == CommandResult(
        2,
        "",
        "'spec.yaml' does not name the function that builds the model\n"
        "  hint: write model.py:build\n",
    )


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: layers.Dense, "fc"),
        (lambda: layers.fc(None, units=3), "size"),
        (lambda: layers.fc(None, 3, actvation="relu"), "activation"),
        (lambda: optimizer.SGD(lr=0.1), "learning_rate"),
        (lambda: optimizer.Adam(0.1, beta1=0.5), "b1"),
    ],
)
def test_names_of_other_systems_get_a_hint(
    call: Callable[[], object], meant: str
) -> None:
    with pytest.raises((AttributeError, TypeError)) as caught:
        call()
    assert hint_for(caught.value) == f"did you mean '{meant}'?"
