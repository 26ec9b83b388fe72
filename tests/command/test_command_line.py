"""The command line: what it prints, where, and the status it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import placer
from placer.build.plan import read_plan
from placer.command.cli import commands, main
from placer.errors import RunError
from placer.graph.text import parse_graph, parse_graphs
from placer.passes import NAMES
from placer.report import server_tables
from placer.report.outcome import crowded
from placer.resources import find

DIGITS = find("specs/digits.yaml")
BROKEN = """\
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {image: "float32[batch, 64]", label: "int32[batch]"}
data:
  train: {source: "sklearn:digits", batch: 128}
graph:
  - {name: h1, op: fcc, in: image, size: 128}
  - {name: loss, op: softmax_cross_entropy, in: [image, label], reduc: mean}
train:
  minimize: loss
  metrics: [loss]
  optimizer: {op: sgd, learning_rate: 0.1}
"""


@dataclass(frozen=True)
class Told:
    """What a command line wrote, and its exit status."""

    status: object
    out: str
    err: str


Tell = Callable[..., Told]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """digits, compiled for two workers and two servers."""
    folder = tmp_path_factory.mktemp("digits") / "build"
    placer.compile(DIGITS, folder)
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    spec = tmp_path / "broken.yaml"
    spec.write_text(BROKEN)
    return spec


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    def run(*arguments: object) -> Told:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Told(ended.value.code, out, err)

    return run


def test_help_shows_the_way_in_order(tell: Tell) -> None:
    told = tell("--help")
    assert told.status == 0
    listed = told.out.split("Commands:")[1].splitlines()
    names = [line.split()[0] for line in listed if line.startswith("  ")]
    assert names[:7] == [
        "compile",
        "launch",
        "show",
        "explain",
        "check",
        "run",
        "schema",
    ]


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_each_command_says_what_its_arguments_are(tell: Tell, name: str) -> None:
    told = tell(name, "--help")
    assert told.status == 0
    assert f"Usage: placer {name}" in told.out
    for parameter in commands.commands[name].params:
        if not getattr(parameter, "hidden", False):
            assert (
                getattr(parameter, "help", "") or parameter.human_readable_name
            ) in (" ".join(told.out.split()))


HEAVY = """
import sys
from placer.command import main
try:
    main(sys.argv[1:])
finally:
    print({"jax", "numpy", "rich", "zmq"} & set(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("name", ["", *sorted(commands.commands)])
def test_help_imports_nothing_heavy(name: str) -> None:
    told = heavy(*([name] if name else []), "--help")
    assert told.returncode == 0
    assert told.stderr == "set()\n"


@pytest.mark.parametrize("command", ["check", "compile"])
def test_a_spec_error_imports_neither_jax_nor_numpy(
    command: str, broken: Path, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "build")] if command == "compile" else []
    told = heavy(command, str(broken), *out)
    assert told.returncode == 2
    assert told.stderr.endswith("set()\n")


def heavy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAVY, *arguments], capture_output=True, text=True
    )


def test_it_runs_as_a_module() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "placer", "--version"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"placer, version {placer.__version__}\n"


@pytest.mark.parametrize("line", [["launch"], ["run", "--node", "worker:0"]])
@pytest.mark.parametrize("function", ["", ":build"])
def test_a_spec_in_place_of_a_build_is_told_to_be_compiled(
    tell: Tell, line: list[str], function: str
) -> None:
    spec = f"{DIGITS}{function}".replace(".yaml:", ".py:")
    told = tell(*line, spec)
    assert told.status == 2
    hint = f"placer compile {spec} --out build/"
    assert f"'{spec}' is a spec, compile it first: {hint}\n" in told.err


@pytest.mark.parametrize(
    ("nodes", "cores", "note"),
    [
        (9, 2, "9 processes share 2 cores"),
        (3, 1, "3 processes share 1 core"),
        (4, 2, None),
    ],
)
def test_many_processes_on_few_cores_are_told(
    nodes: int, cores: int, note: str | None, build: Path
) -> None:
    plan = read_plan(build)
    many = msgspec.structs.replace(plan, nodes=[plan.nodes[0]] * nodes)
    assert crowded(many, cores) == note


def test_version(tell: Tell) -> None:
    told = tell("--version")
    assert (told.status, told.out) == (0, f"placer, version {placer.__version__}\n")


def test_compile_says_what_it_made(tell: Tell, tmp_path: Path) -> None:
    out = tmp_path / "build"
    told = tell("compile", DIGITS, "--out", out, "--nodes", "worker=4,ps=1")
    assert told.status == 0
    assert told.out.startswith("digits: 5 programs (worker:0-3, ps:0), ")
    assert f"placer launch {out}" in told.out
    assert (out / "worker-3" / "program.py").is_file()


LONG = "a" * 300


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (f"--save-params={LONG}", f"cannot write '{LONG}': File name too long"),
        (f"--history={LONG}", f"cannot write '{LONG}': File name too long"),
        (f"--logs={LONG}", "cannot make the logs' folder: [Errno 36] File name too"),
    ],
)
def test_a_name_that_is_too_long_is_told(
    tell: Tell, build: Path, option: str, said: str
) -> None:
    told = tell("launch", build, option)
    assert told.status == 2
    assert told.err.startswith(said)


@pytest.mark.parametrize("command", ["launch", "show"])
def test_a_build_whose_name_is_too_long_is_told(tell: Tell, command: str) -> None:
    told = tell(command, LONG)
    assert told.status == 2
    assert "OSError" not in told.err


def test_compile_warns_of_a_build_that_would_be_refused(
    tell: Tell, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    told = tell("compile", DIGITS, "--out", shared / "build")
    assert told.status == 0
    assert told.err.startswith(
        f"warning: placer launch will refuse this build: '{shared}' can be written by"
        " anybody\n"
        "  hint: who can change a build decides what you run: move it"
    )
    assert "PLACER_TRUST" in told.err


def test_compile_for_a_single_process(tell: Tell, tmp_path: Path) -> None:
    told = tell("compile", DIGITS, "--out", tmp_path / "b", "--single-process")
    assert told.out.startswith(
        "digits: 1 program (worker:0), 0 edges, 0 bytes a step\n"
    )


TWICE = ("microbatch", "layout", "recompute", "transfer", "memcpy", "segment")
"""What comes after the passes that a step shares with its evaluation runs on both."""


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_after_a_pass_is_all_there_is_on_stdout(
    tell: Tell, tmp_path: Path, name: str
) -> None:
    told = tell("compile", DIGITS, "--out", tmp_path / "b", f"--print-after={name}")
    assert told.status == 0
    graphs = parse_graphs(told.out)
    assert len(graphs) == (2 if name in TWICE else 1)
    assert "digits: 4 programs" in told.err


def test_the_passes_are_named_in_the_help_and_for_a_typo(
    tell: Tell, tmp_path: Path
) -> None:
    told = tell("compile", "--help")
    assert f"{', '.join(NAMES[:-1])} or {NAMES[-1]}." in " ".join(told.out.split())
    told = tell("compile", DIGITS, "--out", tmp_path / "b", "--print-after=plaec")
    assert told.status == 2
    assert "no pass is named 'plaec'; did you mean 'place'?" in told.err


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--nodes", "worker", "'worker' is not KIND=N"),
        ("--nodes", "worker=two", "'worker=two' is not KIND=N"),
        ("--nodes", "worker=1,worker=2", "'worker' is given twice"),
    ],
)
def test_a_wrong_option_is_the_users_mistake(
    tell: Tell, option: str, text: str, message: str
) -> None:
    told = tell("check", DIGITS, option, text)
    assert told.status == 2
    assert message in told.err


def test_check_tells_all_mistakes_with_their_places(tell: Tell, broken: Path) -> None:
    told = tell("check", broken)
    assert (told.status, told.out) == (2, "")
    assert f"{broken}:6:" in told.err
    assert "did you mean 'fc'?" in told.err
    assert f"{broken}:7:" in told.err
    assert "did you mean 'reduce'?" in told.err
    assert "Traceback" not in told.err


def test_check_of_a_good_spec(tell: Tell) -> None:
    told = tell("check", DIGITS)
    assert told.status == 0
    assert told.out.startswith(f"{DIGITS}: ok: 4 programs (worker:0-1, ")


@pytest.mark.parametrize("line", [["check"], ["show"], ["explain"]])
def test_a_spec_to_look_at_is_compiled_in_memory(
    tell: Tell, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of a process that is killed meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert tell(*line, DIGITS).status == 0


@pytest.mark.parametrize("at", [0, 2])
def test_debug_shows_the_traceback(tell: Tell, broken: Path, at: int) -> None:
    arguments = ["check", str(broken)]
    arguments.insert(at, "--debug")
    told = tell(*arguments)
    assert told.status == 2
    assert "Traceback (most recent call last)" in told.err


def test_an_unexpected_error_is_one_line_and_a_hint(
    tell: Tell, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(server_tables, "table_views", fail)
    told = tell("show", build, "--tables")
    assert told.status == 1
    assert told.err == (
        "ZeroDivisionError: by zero\n  hint: --debug shows where it came from\n"
    )
    assert "Traceback" in tell("show", build, "--tables", "--debug").err


@pytest.mark.parametrize("of", [ValueError, RunError])
def test_an_error_does_not_steer_the_terminal(
    tell: Tell, build: Path, monkeypatch: pytest.MonkeyPatch, of: type[Exception]
) -> None:
    def fail(plan: object) -> None:
        raise of("a\x1b[2Jb\r\tc\nd\u202e\ud800 é")

    monkeypatch.setattr(server_tables, "table_views", fail)
    told = tell("show", build, "--tables").err
    assert "a\ufffd[2Jb\ufffd\tc\nd\ufffd\ufffd é\n" in told


def test_an_interrupt_exits_with_130(
    tell: Tell, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(plan: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server_tables, "table_views", interrupt)
    assert tell("show", build, "--tables").status == 130


def test_a_reader_that_leaves_is_no_error(build: Path) -> None:
    command = [sys.executable, "-m", "placer.command", "show", str(build)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait() == 1


def test_schema_is_json(tell: Tell) -> None:
    told = tell("schema")
    assert told.status == 0
    assert json.loads(told.out) == placer_schema()


def placer_schema() -> object:
    from placer.spec import json_schema

    return json.loads(json.dumps(json_schema()))


def test_show_off_a_terminal_is_the_graph_of_the_build(tell: Tell, build: Path) -> None:
    told = tell("show", build)
    assert told.status == 0
    assert told.out == (build / "graph.txt").read_text()


def test_show_of_a_spec_is_that_of_its_build(tell: Tell, build: Path) -> None:
    assert tell("show", DIGITS).out == tell("show", build).out


def test_show_of_a_node_is_its_program(tell: Tell, build: Path) -> None:
    told = tell("show", build, "--node", "ps:1")
    assert told.out == (build / "ps-1" / "program.py").read_text()
    assert tell("show", build, "--node", "ps:7").err.startswith(
        "this build has no node 'ps:7'"
    )


def test_show_schedule_prints_what_the_build_holds(tell: Tell, tmp_path: Path) -> None:
    assert (
        tell("compile", "specs/mlp_pipeline.yaml", "--out", tmp_path / "b").status == 0
    )
    told = tell("show", tmp_path / "b", "--schedule").out
    assert told == (tmp_path / "b" / "schedule.txt").read_text()
    assert told.startswith("schedule 1f1b microbatches(8) {\n  worker:0 forward.0 ")


def test_show_schedule_of_a_step_in_one_part_says_so(tell: Tell, build: Path) -> None:
    told = tell("show", build, "--schedule")
    assert told.out == "a step is one part: train.microbatches of the spec is 1\n"


def test_show_tables_lists_every_block_and_the_balance(tell: Tell, build: Path) -> None:
    lines = [line.split() for line in tell("show", build, "--tables").out.splitlines()]
    assert ["h1.w", "h1.w", "0-8,191", "[64,", "128]", "32,768"] in lines
    assert ["logits.b", "logits.b", "0-9", "[10]", "40"] in lines
    heads = [line[:3] for line in lines if line and line[0].startswith("ps:")]
    assert heads == [["ps:0", "dense", "1"], ["ps:1", "dense", "3"]]
    # 32,768 of 38,440 bytes are on one of two servers.
    assert lines[-1][-1] == "1.705"


def test_a_server_without_a_block_says_so(tell: Tell, tmp_path: Path) -> None:
    tell("compile", DIGITS, "--out", tmp_path / "b", "--nodes", "ps=9")
    assert "ps:8 holds no block\n" in tell("show", tmp_path / "b", "--tables").out


def test_explain_a_parameter(tell: Tell, build: Path) -> None:
    assert tell("explain", build, "h1.w").out == (
        "h1.w: parameter float32[64, 128], trained\n"
        "  written at digits.yaml:28:16\n"
        "  begins as xavier_uniform\n"
        "  stands on ps:0: a parameter stands where its optimizer (adam) does\n"
        "    h1.w: elements 0-8,191, 32,768 bytes, on ps:0 in table 'dense' (adam)\n"
        "  dense: adam: learning rate cosine: {init: 0.01, steps: 220}, b1 0.9, "
        "b2 0.999, eps 1e-08; keeps mu and nu of each element\n"
        "  the parameter crosses between nodes:\n"
        "    edge 1: ps:0 -> worker:0, worker:1, h1.w R -> R, 65,536 bytes a step\n"
        "    edge 7: ps:0 -> worker:0, worker:1, h1.w R -> R, "
        "65,536 bytes an evaluation\n"
        "  its gradient crosses between nodes:\n"
        "    edge 3: worker:0, worker:1 -> ps:0, h1.w.grad P -> R, summed in the "
        "order of the nodes, 65,536 bytes a step\n"
    )


def test_explain_an_op(tell: Tell, build: Path) -> None:
    lines = tell("explain", build, "logits.grad").out.splitlines()
    graph = parse_graphs((build / "graph.txt").read_text())[0]
    assert parse_graph_op(lines[0]) == graph.producers["logits.grad"]
    assert lines[1:4] == [
        "  written at digits.yaml:30:16",
        "  stands at /node:worker/cpu (worker:0, worker:1): "
        "a gradient op stands where its forward op does",
        "  logits.grad is split: each has its rows of the batch",
    ]
    assert lines[-1] == "  logits.grad does not cross between nodes"


def parse_graph_op(line: str) -> object:
    nodes = "nodes(worker: 2, ps: 2)"
    return parse_graph(f"graph @g {nodes} batch(128) {{\n  {line}\n}}\n").ops[0]


def test_explain_an_inserted_op(tell: Tell, build: Path) -> None:
    told = tell("explain", build, "send.h1.w.grad")
    assert "put in: h1.w.grad is needed at /node:ps:0/cpu (edge 3)" in told.out


def test_explain_says_which_rows_heter_nodes_have(tell: Tell, tmp_path: Path) -> None:
    wide_deep, build = find("specs/wide_deep.yaml"), tmp_path / "build"
    tell("compile", wide_deep, "--out", build, "--nodes", "worker=4,heter=2")
    lines = tell("explain", build, "deep").out.splitlines()
    at = lines.index("  deep is split: each has its rows of the batch")
    assert lines[at + 1 : at + 3] == [
        "    heter:0 has those of worker:0, worker:2",
        "    heter:1 has those of worker:1, worker:3",
    ]


def test_explain_follows_what_is_copied_to_a_node_s_memory_and_sent(
    tell: Tell, tmp_path: Path
) -> None:
    wide_deep = find("specs/wide_deep.yaml")
    tell("compile", wide_deep, "--out", tmp_path / "build")
    told = tell("explain", tmp_path / "build", "deep1.w").out
    assert told.splitlines()[-2:] == [
        "  its gradient crosses between nodes:",
        "    edge 8: heter:0 -> ps:0, deep1.w.grad.d2h R -> R, 44,036 bytes a step, "
        "with 5 other values",
    ]


def test_explain_says_what_is_done_for_each_microbatch(
    tell: Tell, tmp_path: Path
) -> None:
    tell("compile", find("specs/mlp_pipeline.yaml"), "--out", tmp_path / "build")
    lines = tell("explain", tmp_path / "build", "loss").out.splitlines()
    assert lines[3:5] == [
        "  runs for each of the 8 microbatches of a step",
        "  loss is partial over microbatches: the value is the sum over all",
    ]


def test_explain_without_a_name_lists_all_choices(tell: Tell, build: Path) -> None:
    plan = json.loads((build / "plan.json").read_text())
    lines = tell("explain", build).out.splitlines()
    assert lines == [f"{choice['what']}: {choice['why']}" for choice in plan["choices"]]
    assert len(lines) > 10


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h1.ww", "did you mean 'h1.w'?"),
        ("worker:0", "it is a node: see `placer show --node worker:0`"),
        ("qqqqqq", "`placer show` lists the names"),
    ],
)
def test_explain_an_unknown_name(tell: Tell, build: Path, name: str, hint: str) -> None:
    told = tell("explain", build, name)
    assert (told.status, told.out) == (2, "")
    assert told.err == f"'digits' has no op and no parameter '{name}'\n  hint: {hint}\n"


@pytest.mark.parametrize("command", [["launch"], ["run", "--node", "worker:0"]])
def test_an_edited_build_is_refused_before_anything_starts(
    tell: Tell, tmp_path: Path, command: list[str]
) -> None:
    build = tmp_path / "build"
    placer.compile(DIGITS, build)
    with (build / "ps-0" / "program.py").open("a") as program:
        program.write("# edited\n")
    told = tell(*command, build)
    assert told.status == 2
    assert "program.py' is not as it was compiled" in told.err


@pytest.mark.parametrize("option", ["--history", "--save-params"])
@pytest.mark.parametrize("command", [["launch"], ["run", "--node", "worker:0"]])
def test_a_file_that_cannot_be_written_is_told_before_training(
    tell: Tell, build: Path, command: list[str], option: str, tmp_path: Path
) -> None:
    told = tell(*command, build, option, tmp_path / "no" / "file")
    assert told.status == 2
    assert f"there is no folder '{tmp_path / 'no'}'" in told.err


def test_endpoints_of_unknown_nodes_are_refused(tell: Tell, build: Path) -> None:
    command = ["run", build, "--node", "worker:0", "--endpoints"]
    told = tell(*command, "worker:9=127.0.0.1:4000")
    assert told.status == 2
    assert "this build has no node 'worker:9'" in told.err
    assert "is not NODE=HOST:PORT" in tell(*command, "worker:0").err
