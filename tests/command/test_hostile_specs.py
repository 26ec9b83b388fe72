"""Commands on untrusted specs and builds: which code they run, what they print."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.text import Text

import placer
from placer.command.cli import main
from placer.plan.plan import Plan, sha256, to_json, with_digest
from placer.report.console import console
from placer.system.resources import find_file

MODULE = """\
from pathlib import Path

Path(__file__).with_name("it ran").touch()


def double(params, state, x, rng, training):
    return x * 2, state


def train():
    yield {"x": [0.0], "y": 0}


def build():
    raise RuntimeError("built")
"""
SPEC = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 1]"}
data: {train: {source: "python:evil:train", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 4}
  - {name: one, op: call, fn: "evil:double", in: h, batch: whole, out: "float32[batch, 4]"}
  - {name: two, op: call, fn: "evil:double", in: one, batch: whole, out: "float32[batch, 4]"}
  - {name: loss, op: reduce_mean, in: two}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""
ESCAPE = "\x1b]0;pwned\x07"
RunCommand = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run a command line; return its status, output and errors."""

    def run(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as exited:
            main([str(each) for each in arguments])
        return exited.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A folder with a module that creates a file when it is run."""
    (tmp_path / "evil.py").write_text(MODULE)
    (tmp_path / "calls.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize("command", ["check", "show", "explain", "compile"])
def test_without_code_a_call_is_an_error_at_its_line(
    command: str, evil: Path, run_command: RunCommand
) -> None:
    out = ("--out", evil / "build") if command == "compile" else ()
    status, output, error = run_command(command, evil / "calls.yaml", "--no-code", *out)
    assert (status, output) == (2, "")
    assert "calls.yaml:6:12: compiling op 'one' needs to run evil:double" in error
    assert "calls.yaml:7:12: compiling op 'two' needs to run evil:double" in error
    assert not (evil / "it ran").exists()


@pytest.mark.parametrize("command", ["check", "show", "explain", "compile"])
def test_without_code_a_python_file_is_refused(
    command: str, evil: Path, run_command: RunCommand
) -> None:
    out = ("--out", evil / "build") if command == "compile" else ()
    status, output, error = run_command(
        command, f"{evil / 'evil.py'}:build", "--no-code", *out
    )
    assert (status, output) == (2, "")
    assert "evil.py:build is a Python file, and its model cannot be read" in error
    assert not (evil / "it ran").exists()


# output


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_name_cannot_send_control_characters_to_the_terminal(
    exists: bool, tmp_path: Path, run_command: RunCommand
) -> None:
    spec = tmp_path / f"e{ESCAPE}\u202e.yaml"
    if exists:
        spec.write_bytes(find_file("specs/two_workers.yaml").read_bytes())
    for command in ("check", "show"):
        status, out, error = run_command(command, spec)
        assert status == (0 if exists else 2)
        assert not {"\x1b", "\x07", "\u202e"} & {*out, *error}
        if exists and command == "check":
            assert "e\N{REPLACEMENT CHARACTER}]0;pwned" in out


def test_a_foreign_build_cannot_send_control_characters_to_the_terminal(
    tmp_path: Path, run_command: RunCommand
) -> None:
    build = tmp_path / "build"
    plan = placer.compile(find_file("specs/two_workers.yaml"), build)
    program = build / plan.nodes[0].program
    program.write_text(f"# {ESCAPE}\n{program.read_text()}")
    tree = json.loads((build / "plan.json").read_bytes())
    tree["files"][plan.nodes[0].program] = sha256(program.read_bytes())
    tree["choices"][0]["why"] = f"because {ESCAPE}"
    plan = with_digest(msgspec.json.decode(json.dumps(tree), type=Plan))
    (build / "plan.json").write_text(to_json(plan))
    for command in (("show", "--node", "worker:0"), ("explain",), ("show", "--tables")):
        status, out, error = run_command(command[0], build, *command[1:])
        assert (status, error) == (0, "")
        assert "\x1b" not in out
        assert ("]0;pwned" in out) == ("--tables" not in command)


def test_a_terminal_gets_colors_but_no_control_characters_of_a_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    console(stream).print(Text(f"name {ESCAPE}", "red"))
    shown = stream.getvalue()
    assert shown.startswith("\x1b[31m")
    assert ESCAPE not in shown
    assert "\N{REPLACEMENT CHARACTER}]0;pwned" in shown


def test_the_command_line_prints_only_through_echo() -> None:
    folder = Path(placer.__file__).parent / "command"
    for file in folder.glob("*.py"):
        calls = [
            n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)
        ]
        printing = {"print", "click.echo", "click.secho", "sys.stdout.write"}
        used = printing & {ast.unparse(call.func) for call in calls}
        assert used == ({"click.echo"} if file.name == "console.py" else set()), file
