"""The command line: its output on stdout and stderr, and its exit status."""

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
from placer.command.cli import commands, main
from placer.compiler.graph.text import parse_graphs, print_op
from placer.compiler.passes import PASSES
from placer.errors import RunError
from placer.plan.plan import read_plan
from placer.report import server_tables
from placer.report.outcome import crowding_note
from placer.system.resources import find_file

DIGITS = find_file("specs/digits.yaml")
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
class CommandResult:
    """The output of a command line, and its exit status."""

    status: object
    out: str
    err: str


RunCommand = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of digits.yaml for two workers and two servers."""
    folder = tmp_path_factory.mktemp("digits") / "build"
    placer.compile(DIGITS, folder)
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    spec = tmp_path / "broken.yaml"
    spec.write_text(BROKEN)
    return spec


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    def run(*arguments: object) -> CommandResult:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return CommandResult(ended.value.code, out, err)

    return run


def test_help_lists_the_commands_in_order(run_command: RunCommand) -> None:
    result = run_command("--help")
    assert result.status == 0
    listed = result.out.split("Commands:")[1].splitlines()
    names = [line.split()[0] for line in listed if line.startswith("  ")]
    assert names[:14] == [
        "init",
        "train",
        "compile",
        "launch",
        "predict",
        "export",
        "runs",
        "checkpoints",
        "report",
        "show",
        "explain",
        "check",
        "run",
        "schema",
    ]


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_the_help_of_each_command_describes_its_arguments(
    run_command: RunCommand, name: str
) -> None:
    result = run_command(name, "--help")
    assert result.status == 0
    assert f"Usage: placer {name}" in result.out
    for parameter in commands.commands[name].params:
        if not getattr(parameter, "hidden", False):
            assert (
                getattr(parameter, "help", "") or parameter.human_readable_name
            ) in (" ".join(result.out.split()))


PRINT_HEAVY_IMPORTS = """
import sys
from placer.command import main
try:
    main(sys.argv[1:])
finally:
    print({"jax", "numpy", "rich"} & set(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("name", ["", *sorted(commands.commands)])
def test_help_imports_nothing_heavy(name: str) -> None:
    result = run_heavy(*([name] if name else []), "--help")
    assert result.returncode == 0
    assert result.stderr == "set()\n"


@pytest.mark.parametrize("command", ["check", "compile"])
def test_a_spec_error_imports_neither_jax_nor_numpy(
    command: str, broken: Path, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "build")] if command == "compile" else []
    result = run_heavy(command, str(broken), *out)
    assert result.returncode == 2
    assert result.stderr.endswith("set()\n")


def test_a_launch_imports_neither_the_compiler_nor_jax() -> None:
    modules = (
        "placer.command.launch, placer.launcher.launch, placer.launcher.run_folder"
    )
    heavy = (
        "{each for each in sys.modules if each.startswith(('placer.compiler', 'jax'))}"
    )
    code = f"import sys, {modules}; print({heavy})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"


def run_heavy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRINT_HEAVY_IMPORTS, *arguments],
        capture_output=True,
        text=True,
    )


def test_it_runs_as_a_module() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "placer", "--version"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"placer, version {placer.__version__}\n"


@pytest.mark.parametrize("line", [["launch"], ["run", "--node", "worker:0"]])
@pytest.mark.parametrize("function", ["", ":build"])
def test_a_spec_in_place_of_a_build_gives_a_hint_to_train_or_compile_it(
    run_command: RunCommand, line: list[str], function: str
) -> None:
    spec = f"{DIGITS}{function}".replace(".yaml:", ".py:")
    result = run_command(*line, spec)
    assert result.status == 2
    assert (
        f"'{spec}' is a spec; train it with: placer train {spec}, or compile it first:"
        f" placer compile {spec} --out build/\n"
    ) in result.err


@pytest.mark.parametrize(
    ("nodes", "cores", "note"),
    [
        (9, 2, "9 processes share 2 cores"),
        (3, 1, "3 processes share 1 core"),
        (4, 2, None),
    ],
)
def test_many_processes_on_few_cores_give_a_note(
    nodes: int, cores: int, note: str | None, build: Path
) -> None:
    plan = read_plan(build)
    first = plan.nodes[0]
    workers = [msgspec.structs.replace(first, name=f"worker:{i}") for i in range(nodes)]
    many = msgspec.structs.replace(plan, nodes=workers)
    assert crowding_note(many, cores) == note


def test_version(run_command: RunCommand) -> None:
    result = run_command("--version")
    assert (result.status, result.out) == (0, f"placer, version {placer.__version__}\n")


def test_compile_prints_a_summary_of_the_build(
    run_command: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "build"
    result = run_command(
        "compile", DIGITS, "--out", out, "--nodes", "worker=4", "--nodes", "ps=1"
    )
    assert result.status == 0
    assert result.out.startswith("digits: 5 programs (worker:0-3, ps:0), ")
    assert f"placer launch {out}" in result.out
    assert (out / "worker-3" / "program.py").is_file()


LONG_NAME = "a" * 300


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            f"--save-params={LONG_NAME}",
            f"cannot write '{LONG_NAME}': File name too long",
        ),
        (f"--history={LONG_NAME}", f"cannot write '{LONG_NAME}': File name too long"),
        (
            f"--logs={LONG_NAME}",
            f"cannot write to the folder '{LONG_NAME}': File name",
        ),
    ],
)
def test_a_file_name_that_is_too_long_is_reported(
    run_command: RunCommand, build: Path, option: str, message: str
) -> None:
    result = run_command("launch", build, option)
    assert result.status == 2
    assert result.err.startswith(message)


@pytest.mark.parametrize("command", ["launch", "show"])
def test_a_build_name_that_is_too_long_is_reported(
    run_command: RunCommand, command: str
) -> None:
    result = run_command(command, LONG_NAME)
    assert result.status == 2
    assert "OSError" not in result.err


def test_compile_warns_about_a_build_that_launch_would_refuse(
    run_command: RunCommand, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    result = run_command("compile", DIGITS, "--out", shared / "build")
    assert result.status == 0
    assert result.err.startswith(
        f"warning: placer launch will refuse this build: '{shared}' is writable by"
        " everybody\n"
        "  hint: anyone who can change a build decides which code you run: move it"
    )
    assert "PLACER_TRUST" in result.err


def test_compile_for_a_single_process(run_command: RunCommand, tmp_path: Path) -> None:
    result = run_command("compile", DIGITS, "--out", tmp_path / "b", "--single-process")
    assert result.out.startswith(
        "digits: 1 program (worker:0), 0 edges, 0 bytes per step\n"
    )


def test_servers_without_parameters_are_named(run_command: RunCommand) -> None:
    result = run_command("check", DIGITS, "--nodes", "worker=2,ps=6")
    assert result.out.endswith(" kB per step; no parameters on ps:4-5\n")


PASSES_OF_ALL_GRAPHS = (
    "microbatch",
    "layout",
    "recompute",
    "buckets",
    "transfer",
    "memcpy",
    "segment",
    "send_and_recv",
)
"""The passes that run on the graphs of a step, an evaluation and a prediction."""


@pytest.mark.parametrize("name", PASSES)
def test_print_after_prints_only_the_graph_on_stdout(
    run_command: RunCommand, tmp_path: Path, name: str
) -> None:
    result = run_command(
        "compile", DIGITS, "--out", tmp_path / "b", f"--print-after={name}"
    )
    assert result.status == 0
    graphs = parse_graphs(result.out)
    assert len(graphs) == (3 if name in PASSES_OF_ALL_GRAPHS else 1)
    assert "digits: 4 programs" in result.err


def test_opt_runs_passes_on_the_text_of_a_graph(
    run_command: RunCommand, tmp_path: Path
) -> None:
    build = ("compile", DIGITS, "--out", tmp_path / "b")
    placed = run_command(*build, "--print-after=place").out
    sliced = run_command(*build, "--print-after=slice").out
    graph = tmp_path / "placed.txt"
    graph.write_text(placed)
    result = run_command("opt", graph, "--pass=partial_sums", "--pass=slice")
    assert (result.status, result.out) == (0, sliced)
    assert run_command("opt", graph).out == placed


def test_opt_refuses_a_graph_that_the_pass_does_not_take(
    run_command: RunCommand, tmp_path: Path
) -> None:
    graph = tmp_path / "written.txt"
    header = "graph @g nodes(worker: 1) batch(2) {\n"
    op = "%a: float32[2] = parameter() {init = zeros}"
    graph.write_text(f"{header}  {op}\n}}\n")
    result = run_command("opt", graph, "--pass", "layout")
    assert result.status == 2
    assert f"the op has no place:\n    {op}" in result.err
    update = "{async = {queue = 0}}"
    settings = f"group = 0, rule = sgd, learning_rate = 0.1, update = {update}"
    graph.write_text(f"{header}  optimizer() {{{settings}}}\n}}\n")
    result = run_command("opt", graph)
    assert result.status == 2
    assert "written.txt:2:" in result.err
    assert "optimizer cannot have update: {" in result.err
    assert "Expected `int` >= 1" in result.err
    graph.write_text("graph @g {")
    result = run_command("opt", graph)
    assert result.status == 2
    assert "written.txt:1:10: this is not the text of a graph" in result.err


def test_opt_says_why(run_command: RunCommand, tmp_path: Path) -> None:
    build = ("compile", DIGITS, "--out", tmp_path / "b")
    graph = tmp_path / "graph.txt"
    graph.write_text(run_command(*build, "--print-after=differentiate").out)
    result = run_command("opt", graph, "--pass", "place", "--why")
    assert "# a parameter is stored with its optimizer (adam)" in result.out


def test_the_help_and_the_error_for_a_typo_name_the_passes(
    run_command: RunCommand, tmp_path: Path
) -> None:
    result = run_command("compile", "--help")
    *names, last = PASSES
    assert f"{', '.join(names)} or {last}." in " ".join(result.out.split())
    result = run_command(
        "compile", DIGITS, "--out", tmp_path / "b", "--print-after=plaec"
    )
    assert result.status == 2
    assert "unknown pass 'plaec'; did you mean 'place'?" in result.err


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--nodes", "worker", "'worker' is not KIND=N"),
        ("--nodes", "worker=two", "'worker=two' is not KIND=N"),
        ("--nodes", "worker=1,worker=2", "'worker' is repeated"),
        ("--nodes", "worker=1 --nodes ps=1 --nodes worker=2", "'worker' is repeated"),
    ],
)
def test_a_wrong_option_is_a_user_error(
    run_command: RunCommand, option: str, text: str, message: str
) -> None:
    result = run_command("check", DIGITS, option, *text.split())
    assert result.status == 2
    assert message in result.err


def test_check_lists_all_errors_with_their_positions(
    run_command: RunCommand, broken: Path
) -> None:
    result = run_command("check", broken)
    assert (result.status, result.out) == (2, "")
    assert f"{broken}:6:" in result.err
    assert "did you mean 'fc'?" in result.err
    assert f"{broken}:7:" in result.err
    assert "did you mean 'reduce'?" in result.err
    assert "Traceback" not in result.err


def test_check_of_a_good_spec(run_command: RunCommand) -> None:
    result = run_command("check", DIGITS)
    assert result.status == 0
    assert result.out.startswith(f"{DIGITS}: ok: 4 programs (worker:0-1, ")


@pytest.mark.parametrize("line", [["check"], ["show"], ["explain"]])
def test_check_show_and_explain_compile_a_spec_in_memory(
    run_command: RunCommand,
    line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a process that is killed meanwhile leaves no files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert run_command(*line, DIGITS).status == 0


@pytest.mark.parametrize("at", [0, 2])
def test_debug_shows_the_traceback(
    run_command: RunCommand, broken: Path, at: int
) -> None:
    arguments = ["check", str(broken)]
    arguments.insert(at, "--debug")
    result = run_command(*arguments)
    assert result.status == 2
    assert "Traceback (most recent call last)" in result.err


def test_an_unexpected_error_is_one_line_and_a_hint(
    run_command: RunCommand, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(server_tables, "table_views", fail)
    result = run_command("show", build, "--tables")
    assert result.status == 1
    assert result.err == (
        "ZeroDivisionError: by zero\n  hint: --debug shows the traceback\n"
    )
    assert "Traceback" in run_command("show", build, "--tables", "--debug").err


@pytest.mark.parametrize("of", [ValueError, RunError])
def test_an_error_cannot_send_control_characters_to_the_terminal(
    run_command: RunCommand,
    build: Path,
    monkeypatch: pytest.MonkeyPatch,
    of: type[Exception],
) -> None:
    def fail(plan: object) -> None:
        raise of("a\x1b[2Jb\r\tc\nd\u202e\ud800 é")

    monkeypatch.setattr(server_tables, "table_views", fail)
    result = run_command("show", build, "--tables").err
    assert "a\ufffd[2Jb\ufffd\tc\nd\ufffd\ufffd é\n" in result


def test_an_interrupt_exits_with_130(
    run_command: RunCommand, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(plan: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server_tables, "table_views", interrupt)
    assert run_command("show", build, "--tables").status == 130


def test_a_reader_that_closes_the_pipe_causes_no_error_message(build: Path) -> None:
    command = [sys.executable, "-m", "placer.command", "show", str(build)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait() == 1


def test_schema_is_json(run_command: RunCommand) -> None:
    result = run_command("schema")
    assert result.status == 0
    assert json.loads(result.out) == placer_schema()


def placer_schema() -> object:
    from placer.compiler.frontend import json_schema

    return json.loads(json.dumps(json_schema()))


def test_show_prints_the_summary_and_a_picture(
    run_command: RunCommand, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run_command("show", build)
    assert result.status == 0
    summary, _, picture = result.out.partition("\nPlacement of a training step\n\n")
    assert run_command("show", build, "--summary").out == summary
    head, *lines = picture.splitlines()
    assert head.split("  ")[0] == "worker:0-1 (2 nodes)"
    assert max(map(len, lines)) <= 80
    assert (
        "            ◀────── 65.5 kB h1.w ──────┤                          │" in lines
    )


def test_show_graph_without_a_terminal_prints_the_graph_file_of_the_build(
    run_command: RunCommand, build: Path
) -> None:
    text = (build / "graph.txt").read_text()
    assert run_command("show", build, "--graph").out == text
    assert run_command("show", build, "--graph", "--phase", "all").out == text
    graphs = [
        run_command("show", build, "--graph", "--phase", phase).out
        for phase in ("step", "evaluation", "prediction")
    ]
    assert "\n".join(graphs) == text


def test_show_graph_of_a_missing_phase_names_the_others(
    run_command: RunCommand, tmp_path: Path
) -> None:
    text = find_file("specs/digits.yaml").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("  eval: {source"))
    every = "  eval: {every: epoch}\n"
    assert every in text
    (tmp_path / "digits.yaml").write_text(text.replace(line, "").replace(every, ""))
    command = ("show", tmp_path / "digits.yaml", "--graph", "--phase", "evaluation")
    assert run_command(*command).err == (
        "'digits' has no graph of the phase 'evaluation'\n"
        "  hint: it has step and prediction\n"
    )


def test_show_prints_the_same_for_a_spec_and_its_build(
    run_command: RunCommand, build: Path
) -> None:
    assert run_command("show", DIGITS).out == run_command("show", build).out


def test_show_node_prints_the_program_of_the_node(
    run_command: RunCommand, build: Path
) -> None:
    result = run_command("show", build, "--node", "ps:1")
    assert result.out == (build / "ps-1" / "program.py").read_text()
    assert run_command("show", build, "--node", "ps:7").err == (
        "this build has no node 'ps:7'\n"
        "  hint: did you mean 'ps:1'? The nodes are worker:0-1, ps:0-1\n"
    )


def test_show_schedule_draws_the_same_without_a_terminal(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run_command("show", "specs/mlp_pipeline.yaml", "--schedule").out
    first, second, letters, _ = result.splitlines()
    assert first.startswith("worker:0 |f0|")
    assert second.startswith("worker:1 ···|fb0  |fb1 ")
    assert len(first) <= 80
    assert letters == "f forward  b backward  fb forward_backward"


def test_show_schedule_without_microbatches_says_so(
    run_command: RunCommand, build: Path
) -> None:
    result = run_command("show", build, "--schedule")
    assert (
        result.out
        == "no schedule to show: train.microbatches (or gradient_accumulation) is 1\n"
    )


def test_show_tables_lists_every_block_and_the_balance(
    run_command: RunCommand, build: Path
) -> None:
    lines = [
        line.split() for line in run_command("show", build, "--tables").out.splitlines()
    ]
    assert ["h1.w", "h1.w", "0-8,191", "[64,", "128]", "32,768"] in lines
    assert ["logits.b", "logits.b", "0-9", "[10]", "40"] in lines
    heads = [line[:5] for line in lines if "table" in line[1:2]]
    table = ["table", "0", "dense"]
    assert heads == [["ps:0", *table, "1"], ["ps:1", *table, "3"]]
    # 32,768 of 38,440 bytes are on one of two servers.
    assert lines[-2][-1] == "1.705"
    reason = "h1.w is one block, because its 8,192 elements are at most min_block"
    assert reason in " ".join(lines[-1])


def test_show_tables_names_a_server_without_blocks(
    run_command: RunCommand, tmp_path: Path
) -> None:
    run_command("compile", DIGITS, "--out", tmp_path / "b", "--nodes", "ps=9")
    assert "ps:8 has no blocks\n" in run_command("show", tmp_path / "b", "--tables").out


def test_explain_a_parameter(run_command: RunCommand, build: Path) -> None:
    assert run_command("explain", build, "h1.w").out == (
        "h1.w: parameter float32[64, 128], trained\n"
        "  written at digits.yaml:28:16\n"
        "  initialized as xavier_uniform\n"
        "  stored on ps:0: a parameter is stored with its optimizer (adam)\n"
        "    h1.w: elements 0-8,191, 32,768 bytes, on ps:0 in table 'dense' (adam)\n"
        "  dispatch: balanced puts the largest block first, each on the server with the "
        "fewest bytes. With slots, h1.w has 98,304 bytes; ps:0 stores 98,304; the mean of "
        "2 servers is 57,660\n"
        "  h1.w is one block, because its 8,192 elements are at most min_block (8,192). "
        "'train.slicing.min_block: 4096' divides it over 2 servers\n"
        "  dense: adam: learning rate cosine: {init: 0.01, steps: 220}, b1 0.9, "
        "b2 0.999, eps 1e-08; slots mu = 0 and nu = 0\n"
        "  the parameter is sent between nodes:\n"
        "    edge 1: ps:0 -> worker:0-1, h1.w R -> R, 65,536 bytes per step\n"
        "    edge 7: ps:0 -> worker:0-1, h1.w R -> R, "
        "65,536 bytes per evaluation\n"
        "    edge 9: ps:0 -> worker:0-1, h1.w R -> R, "
        "65,536 bytes per prediction\n"
        "  its gradient is sent between nodes:\n"
        "    edge 3: worker:0-1 -> ps:0, h1.w.grad P -> R, summed in "
        "node order, 65,536 bytes per step\n"
    )


def test_explain_an_op(run_command: RunCommand, build: Path) -> None:
    lines = run_command("explain", build, "logits.grad").out.splitlines()
    graph = parse_graphs((build / "graph.txt").read_text())[0]
    assert lines[0] == print_op(graph.producers["logits.grad"])
    assert lines[1:4] == [
        "  written at digits.yaml:30:16",
        "  runs at /node:worker/cpu (worker:0-1): "
        "a gradient op runs at the place of its forward op",
        "  logits.grad is split: each node has its rows of the batch",
    ]
    assert lines[-1] == "  logits.grad is not sent between nodes"


def test_explain_an_inserted_op(run_command: RunCommand, build: Path) -> None:
    result = run_command("explain", build, "send.h1.w.grad")
    assert "inserted: h1.w.grad needed at /node:ps:0/cpu (edge 3)" in result.out


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h2", "did you mean 'h1'?"),
        ("logit.w", "did you mean 'logits.w'?"),
        ("send.h1.w.grd", "did you mean 'send.h1.w.grad'?"),
        ("nosuch", "`placer explain` without a name lists the names"),
        ("ps:1", "'ps:1' is a node: see `placer show --node ps:1`"),
    ],
)
def test_explain_names_the_nearest_op(
    name: str, hint: str, run_command: RunCommand, build: Path
) -> None:
    result = run_command("explain", build, name)
    assert result.status == 2
    assert result.err == (f"'digits' has no op or parameter '{name}'\n  hint: {hint}\n")


def test_explain_lists_the_rows_of_heter_nodes(
    run_command: RunCommand, tmp_path: Path
) -> None:
    wide_deep, build = find_file("specs/wide_deep.yaml"), tmp_path / "build"
    run_command("compile", wide_deep, "--out", build, "--nodes", "worker=4,heter=2")
    lines = run_command("explain", build, "deep").out.splitlines()
    at = lines.index("  deep is split: each node has its rows of the batch")
    assert lines[at + 1 : at + 3] == [
        "    heter:0 has the rows of worker:0,2",
        "    heter:1 has the rows of worker:1,3",
    ]
    spec = find_file("specs/digits_heter.yaml")
    two = ["--set", "nodes.worker.count=2", "--set", "nodes.heter.count=1"]
    threads = [*two, "--set", "train.threads=2"]
    lines = run_command("explain", spec, "h2", *threads).out.splitlines()
    assert [line.strip() for line in lines if "has the rows of" in line][:4] == [
        "heter:0.0 has the rows of worker:0.0",
        "heter:0.1 has the rows of worker:0.1",
        "heter:0.2 has the rows of worker:1.0",
        "heter:0.3 has the rows of worker:1.1",
    ]


def test_explain_follows_copies_between_memories_to_the_edge(
    run_command: RunCommand, tmp_path: Path
) -> None:
    wide_deep = find_file("specs/wide_deep.yaml")
    run_command("compile", wide_deep, "--out", tmp_path / "build")
    result = run_command("explain", tmp_path / "build", "deep1.w").out
    assert result.splitlines()[-2:] == [
        "  its gradient is sent between nodes:",
        "    edge 8: heter:0 -> ps:0, deep1.w.grad.d2h R -> R, 10,240 bytes per step, in a "
        "message of 44,036 bytes together with deep1.b.grad.d2h, deep2.w.grad.d2h, "
        "deep2.b.grad.d2h, deep.w.grad.d2h and 1 more",
    ]


def test_explain_follows_values_through_the_first_thread_of_a_process(
    run_command: RunCommand,
) -> None:
    spec = find_file("specs/digits_threads.yaml")
    lines = run_command("explain", spec, "h1.w").out.splitlines()
    inside = "between threads of one process, in each step, together with"
    assert [line for line in lines if " per step" in line or " each step" in line] == [
        "    edge 1: ps:0 -> worker:0-1.0, h1.w R -> R, 65,536 bytes per step, in a "
        "message of 76,880 bytes together with h1.b, logits.w, logits.b",
        f"    edge 2: worker:0-1.0 -> worker:0-1.0-1, h1.w.copy.1 R -> R, {inside} "
        "h1.b.copy.1, logits.w.copy.1, logits.b.copy.1",
        "    edge 3: worker:0-1.0-1 -> worker:0-1.0, h1.w.grad P -> P, summed in "
        f"node order, {inside} h1.b.grad, logits.w.grad, logits.b.grad",
        "    edge 4: worker:0-1.0 -> ps:0, h1.w.grad.fold P -> R, summed in node "
        "order, 65,536 bytes per step, in a message of 76,880 bytes together with "
        "h1.b.grad.fold, logits.w.grad.fold, logits.b.grad.fold",
    ]


def test_explain_marks_an_op_that_runs_for_each_microbatch(
    run_command: RunCommand, tmp_path: Path
) -> None:
    run_command(
        "compile", find_file("specs/mlp_pipeline.yaml"), "--out", tmp_path / "build"
    )
    lines = run_command("explain", tmp_path / "build", "loss").out.splitlines()
    assert lines[3:5] == [
        "  runs for each of the 8 microbatches of a step",
        "  loss is partial over microbatches: the value is the sum over all "
        "microbatches",
    ]


def test_explain_without_a_name_groups_the_choices_by_reason(
    run_command: RunCommand, build: Path
) -> None:
    assert (
        run_command("explain", build).out
        == """\
the short tail of a training epoch: left out, because data.train.remainder is drop
batches of an evaluation: 128 rows, remainder keep
a parameter is stored with its optimizer (adam):
  4 ops (parameter) at /node:ps:0/cpu, /node:ps:1/cpu: h1.w, h1.b, logits.w and 1 more
inserted: … needed at /node:worker/cpu (edge …):
  2 ops (send) at /node:ps:0/cpu, /node:ps:1/cpu: send.h1.w, send.h1.b
inserted: … needed at /node:ps:0/cpu (edge …):
  2 ops (send) at /node:worker/cpu, /node:ps:1/cpu: send.h1.w.grad, send.clip.square.1
inserted: … needed at /node:ps:1/cpu (edge …):
  2 ops (send) at /node:worker/cpu, /node:ps:0/cpu: send.h1.b.grad, send.clip.scale
each node reads its own inputs: inputs are not sent:
  2 ops (read) at /node:worker/cpu: image, label
other ops run as written in the spec, and gradient ops at the place of their forward op
names to explain, besides the ops that `placer show --graph` lists:
  inputs: image, label
  layers: h1, logits, loss, accuracy, probability
  parameters: h1.w, h1.b, logits.w, logits.b
  tables: dense
"""
    )


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        (
            ["train.slicing.min_block=4096"],
            [
                "  stored on ps:0-1: a parameter is stored with its optimizer (adam)",
                "  dispatch: balanced puts the largest block first, each on the server with"
                " the fewest bytes. With slots, h1.w.block0 has 49,152 bytes, h1.w.block1"
                " has 49,152 bytes; ps:0 stores 64,512, ps:1 stores 50,808; the mean of 2"
                " servers is 57,660",
                "  h1.w has 2 blocks of whole rows, one for each server: 8,192 elements"
                " / min_block (4,096), rounded up, allow 2 blocks",
            ],
        ),
        (
            ["train.slicing.dispatch=merged"],
            [
                "  stored on ps:0-1: a parameter is stored with its optimizer (adam)",
                "  dispatch: merged cuts the 9,610 elements of all parameters into equal"
                " shares of 4,806",
            ],
        ),
        (
            ["train.slicing.dispatch=round_robin", "train.slicing.min_block=5000"],
            [
                "  stored on ps:0-1: a parameter is stored with its optimizer (adam)",
                "  dispatch: round_robin assigns 5 blocks to 2 servers in turn",
                "  h1.w has 2 blocks of whole rows, one for each server: 8,192 elements"
                " / min_block (5,000), rounded up, allow 2 blocks",
            ],
        ),
        (
            ["train.optimizer.place=/node:ps:1/cpu"],
            [
                "  stored on ps:1: a parameter is stored with its optimizer (adam)",
                "  h1.w is not cut: its optimizer has one server",
            ],
        ),
        (
            ["train.optimizer.place=/node:worker/cpu"],
            [
                "  stored on worker:0-1, a copy on each: a parameter is stored with its"
                " optimizer (adam)"
            ],
        ),
    ],
)
def test_explain_says_why_a_parameter_is_where_it_is(
    run_command: RunCommand, settings: list[str], stored: list[str]
) -> None:
    changes = [word for each in settings for word in ("--set", each)]
    lines = run_command("explain", DIGITS, "h1.w", *changes).out.splitlines()
    begins = ("  stored on", "  dispatch", "  h1.w ")
    assert [line for line in lines if line.startswith(begins)] == stored


def test_explain_names_the_optimizer_of_workers_and_the_sum_of_changes(
    run_command: RunCommand,
) -> None:
    spec = find_file("specs/digits_geo.yaml")
    lines = run_command("explain", spec, "h1.w").out.splitlines()
    assert (
        "  stored on ps:0: a parameter is stored with its optimizer (adam); workers train"
        " copies, and the servers add their changes" in lines
    )
    assert "  worker:0-1 train their own copies, in table 'local' (adam)" in lines
    (merged,) = (line for line in lines if line.startswith("  dense: "))
    (local,) = (line for line in lines if line.startswith("  local: "))
    assert merged.startswith(
        "  dense: adds the changes of workers by sgd: learning rate"
    )
    assert local.startswith("  local: trains the worker's own copy by adam: learning")


def test_explain_a_table(run_command: RunCommand, build: Path) -> None:
    assert run_command("explain", build, "dense").out.splitlines()[1:] == [
        "  ps:0: 1 block of 32,768 bytes: h1.w",
        "  ps:1: 3 blocks of 5,672 bytes: h1.b, logits.w, logits.b",
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h1.ww", "did you mean 'h1.w'?"),
        ("worker:0", "'worker:0' is a node: see `placer show --node worker:0`"),
        ("qqqqqq", "`placer explain` without a name lists the names"),
        (
            "net.drop_seed_generator_state",
            "placer replaces the state of Keras' seed generators by the key of each step,"
            " and stores it nowhere",
        ),
    ],
)
def test_explain_an_unknown_name(
    run_command: RunCommand, build: Path, name: str, hint: str
) -> None:
    result = run_command("explain", build, name)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"'digits' has no op or parameter '{name}'\n  hint: {hint}\n"


@pytest.mark.parametrize("command", [["launch"], ["run", "--node", "worker:0"]])
def test_an_edited_build_is_refused_before_anything_starts(
    run_command: RunCommand, tmp_path: Path, command: list[str]
) -> None:
    build = tmp_path / "build"
    placer.compile(DIGITS, build)
    with (build / "ps-0" / "program.py").open("a") as program:
        program.write("# edited\n")
    result = run_command(*command, build)
    assert result.status == 2
    assert "program.py' was changed after it was compiled" in result.err


@pytest.mark.parametrize("option", ["--history", "--save-params"])
@pytest.mark.parametrize("command", [["launch"], ["run", "--node", "worker:0"]])
def test_a_file_that_cannot_be_written_is_reported_before_training(
    run_command: RunCommand,
    build: Path,
    command: list[str],
    option: str,
    tmp_path: Path,
) -> None:
    result = run_command(*command, build, option, tmp_path / "no" / "file")
    assert result.status == 2
    assert f"the folder '{tmp_path / 'no'}' does not exist" in result.err


def test_endpoints_of_unknown_nodes_are_refused(
    run_command: RunCommand, build: Path
) -> None:
    command = ["run", build, "--node", "worker:0", "--endpoints"]
    result = run_command(*command, "worker:9=127.0.0.1:4000")
    assert result.status == 2
    assert "this build has no node 'worker:9'" in result.err
    assert "is not NODE=HOST:PORT" in run_command(*command, "worker:0").err


def test_show_lists_the_programs_of_the_threads_of_a_process(
    run_command: RunCommand,
) -> None:
    threads = Path(DIGITS).with_name("digits_threads.yaml")
    assert run_command("show", threads, "--node", "worker:1").out.splitlines() == [
        "worker:1 has 2 threads; show the program of one with --node worker:1.0:",
        "  worker:1.0  worker/program.py",
        "  worker:1.1  worker/program_2.py",
    ]
    one = run_command("show", threads, "--node", "worker:1.1").out
    assert one.startswith('"""worker:0-1.1 of digits_threads: 2 workers (4 threads)')
