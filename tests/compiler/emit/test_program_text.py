"""The text of emitted programs: formatted, without lint, valid and deterministic."""

import ast
import json
import os
import runpy
import subprocess
import sys

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import compile as compile_model
from placer.compiler.emit.names import PYTHON_WORDS, RESERVED, Names
from placer.compiler.frontend import load
from placer.compiler.frontend.single_process import to_single_process
from placer.plan.plan import read_plan
from placer.system.resources import find_file

SPECS = sorted(path.stem for path in find_file("specs").glob("*.yaml"))
LONG = "a" + "b" * 62 + "c"
AWKWARD_NAMES = [
    *["node", "ops", "jax", "step", "count", "evaluate", "runtime", "functools"],
    *["print", "list", "type", "match", "case", "_", "__", "None_", "d", "res", "h1_w"],
    *["d_h", "h_res", "out_w", "grad", "forward", "backward", "forward_backward"],
    *["combine", "predict", "annotations", "placer", "dense", "copy", "x_copy", LONG],
    *["copy_2", "split", "Exception", "self", "True_", "h_2"],
]


def chain(names, spread=False):
    """A spec with a chain of ops of these names."""
    places = ["/node:worker", "/node:worker:0"] if spread else ["/node:worker"]
    lines, last = [], "h"
    for i, name in enumerate(names):
        at = places[i % len(places)]
        fc = f"{{name: {name}, op: fc, in: {last}, size: 16, place: '{at}'}}"
        lines.append(f"  - {fc}")
        last = name
    lines.append(f"  - {{name: total, op: reduce_sum, in: {last}}}")
    lines.append("  - {name: all, op: add, in: [loss, total]}")
    return two_layers(extra="\n".join(lines)).replace("minimize: loss", "minimize: all")


def with_evaluation(text):
    return text.replace(
        "graph:\n", '  eval: {source: "npz:rows.npz", batch: 6}\ngraph:\n', 1
    )


ODD = {
    "awkward names": with_evaluation(chain(AWKWARD_NAMES)),
    "awkward names on two places": with_evaluation(chain(AWKWARD_NAMES, spread=True)),
    "sixty layers": chain([f"layer{i}" for i in range(60)]),
    "long names": chain([f"{LONG[:60]}{i}" for i in range(6)]),
    "long names, sliced": two_layers(
        width=128, train="  slicing: {min_block: 20}", nodes="{worker: {count: 2},"
        " ps: {count: 9}}"
    ).replace("{name: h,", f"{{name: {LONG},").replace("in: h,", f"in: {LONG},"),
    "awkward metrics": two_layers(
        train="", extra="  - {name: node, op: reduce_sum, in: out}\n"
        "  - {name: match, op: sqrt, in: loss}\n"
        f"  - {{name: {LONG}, op: reduce_mean, in: out}}",
    ).replace("metrics: [loss]", f"metrics: [loss, node, match, {LONG}]"),
    "one process": two_layers(nodes="{worker: {count: 1}}"),
    "more servers than blocks": two_layers(
        nodes="{worker: {count: 1}, ps: {count: 6}}"
    ),
    "two optimizers": two_layers(
        optimizer="[{op: adam, learning_rate: 0.1, match: 'h.*',"
        " clip: {global_norm: 1.0}}, {op: sgd, learning_rate: 0.1}]"
    ),
    "asynchronous": two_layers(
        optimizer="{op: adam, learning_rate: 0.1, place: /node:ps/cpu, update: async}"
    ),
    "asynchronous, in two phases": two_layers(
        optimizer="{op: lamb, learning_rate: 0.1, place: /node:ps/cpu, update: async}"
    ),
    "asynchronous, on devices": two_layers(
        nodes="{worker: {count: 2}, ps: {count: 2, devices: {cpu: 1, gpu: 1}}}",
        optimizer="{op: lamb, learning_rate: 0.1, place: /node:ps/gpu, update: async}",
    ),
    "a frozen layer": two_layers(
        extra="parameters:\n  - {match: 'h.*', trainable: false}"
    ),
    "constants of every kind": two_layers(
        extra="  - {name: k, op: constant, value: -1.5, shape: [4]}\n"
        "  - {name: tiny, op: constant, value: 1.0e-30}\n"
        "  - {name: s, op: scale, in: out, factor: 1.0e+20}\n"
        "  - {name: t, op: mul, in: [s, k]}\n"
        "  - {name: v, op: mul, in: [t, tiny]}\n"
        "  - {name: r, op: reshape, in: v, shape: [batch, 2, 2]}\n"
        "  - {name: cat, op: concat, in: [r, r], axis: 1}\n"
        "  - {name: sum, op: reduce_sum, in: cat}\n"
        "  - {name: most, op: reduce_mean, in: sum}\n"
        "  - {name: all, op: add, in: [loss, most]}"
    ).replace("minimize: loss", "minimize: all"),
}  # fmt: skip


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """All builds in one folder, so that the formatter runs once."""
    root = tmp_path_factory.mktemp("builds")
    for name in SPECS:
        model = load(find_file(f"specs/{name}.yaml"))
        compile_model(model, root / name)
        compile_model(to_single_process(model), root / f"{name}-single")
    for name, text in ODD.items():
        compile_model(load_model(text), root / name.replace(" ", "-"))
    return root


def programs(root):
    files = sorted(root.glob("*/*/program.py"))
    assert len(files) > 30
    return files


def ruff(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "ruff", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_programs_are_formatted(builds):
    options = ("--line-length", "100", "--check", "--diff", "--isolated")
    done = ruff("format", *options, *map(str, programs(builds)))
    assert done.returncode == 0, done.stdout[:4000] + done.stderr[-400:]


def test_programs_have_no_lint(builds):
    rules = ("--select", "F,E9,E7,W", "--ignore", "E501")
    done = ruff("check", "--isolated", *rules, str(builds))
    assert done.returncode == 0, done.stdout[:4000]


def test_programs_compile_without_warnings(builds):
    for file in programs(builds):
        compile(file.read_text(encoding="utf-8"), str(file), "exec")


def test_a_program_assigns_no_word_of_python(builds):
    for file in programs(builds):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
            stored = {
                name.id
                for name in ast.walk(function)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
            arguments = {
                a.arg for a in (*function.args.args, *function.args.kwonlyargs)
            }
            assert not (stored - {"_"}) & PYTHON_WORDS, file
            assert not arguments & PYTHON_WORDS, file
            assert len(function.args.args) == len({a.arg for a in function.args.args})


def test_no_value_has_a_name_that_programs_use_for_something_else(builds):
    """What a program imports, its hooks, and the variables of hooks and of loops."""
    for file in programs(builds):
        modules = {path.stem for path in file.parents[1].glob("*.py")}
        used = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Import() | ast.ImportFrom():
                    used |= {alias.name for alias in node.names} - modules
                case ast.For(target=ast.Name(id=word)):
                    used.add(word)
                case ast.FunctionDef(returns=ast.Constant(value=None)):
                    used |= {node.name, *(a.arg for a in node.args.args)}
                case ast.FunctionDef():
                    used |= {a.arg for a in node.args.kwonlyargs}
        assert used <= RESERVED, file


def test_a_server_with_parameters_does_not_say_that_it_stores_none(builds):
    for file in programs(builds):
        text = file.read_text(encoding="utf-8")
        assert "stores no parameters" not in text or "(NamedTuple)" not in text, file
    (server,) = {
        f.read_text().count("`serve` handles")
        for f in builds.glob("digits_geo/ps-*/*.py")
    }
    assert server == 1


def test_colliding_names_get_numbers():
    names = Names()
    chosen = [
        names.name_of(v) for v in ("h1.w", "h1_w", "h1.w.grad", "d_h1_w", "jax", "_")
    ]
    assert chosen == ["h1_w", "h1_w_2", "d_h1_w", "d_h1_w_2", "jax_2", "__2"]
    assert names.name_of("h1.w") == "h1_w"


def test_builds_contain_no_path_of_the_machine(builds):
    here = [os.sep + "tmp", os.getcwd(), str(builds), str(find_file("specs").parent)]
    for file in sorted(builds.rglob("*")):
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            if file.name == "sources.json":
                spec = json.loads(text)["spec"]
                assert not os.path.isabs(spec)
                continue
            assert not [path for path in here if path in text], file


def test_sources_contain_positions_in_the_spec(builds):
    file = builds / "digits" / "sources.json"
    sources = json.loads(file.read_text())
    spec = (file.parent / sources["spec"]).resolve()
    assert spec == find_file("specs/digits.yaml").resolve()
    line, column = sources["ops"]["h1"]
    assert spec.read_text().splitlines()[line - 1][column - 1 :].startswith("h1")


def test_every_process_writes_the_same_bytes(tmp_path):
    script = (
        "import sys; from placer.compiler.driver import compile;"
        "[compile(s, f'{sys.argv[1]}/{i}') for i, s in enumerate(sys.argv[2:])]"
    )
    spec = tmp_path / "odd.yaml"
    spec.write_text(ODD["awkward names on two places"])
    specs = [
        str(find_file("specs/digits.yaml")),
        str(find_file("specs/diabetes.yaml")),
        str(spec),
    ]
    builds = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        out.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(
            [sys.executable, "-c", script, str(out), *specs],
            check=True,
            env=environment,
        )
        builds.append(
            {
                str(file.relative_to(out)): file.read_bytes()
                for file in sorted(out.rglob("*"))
                if file.is_file()
            }
        )
    assert len(builds[0]) > 15
    assert builds[0] == builds[1]


def test_the_docstring_of_a_program_names_its_node(builds):
    text = (builds / "digits/worker-1/program.py").read_text()
    assert text.startswith(
        '"""worker:1 of digits: 2 workers, 2 servers.\n\n'
        "Compiled by placer; change the spec, not this file.\n"
    )
    single = (builds / "digits-single/worker-0/program.py").read_text()
    assert single.startswith('"""worker:0 of digits: 1 worker.')


def test_nodes_with_equal_programs_share_a_file_without_their_names(builds):
    folder = builds / "digits"
    body = (folder / "worker/program.py").read_text()
    assert body.startswith('"""workers of digits: 2 workers, 2 servers.')
    assert "worker:" not in body
    assert "worker-" not in body
    plan = read_plan(folder)
    shared = {plan.node(f"worker:{i}").program for i in (0, 1)}
    assert shared == {"worker/program.py"}
    own = [(folder / f"worker-{i}/program.py").read_text() for i in (0, 1)]
    assert own[0].replace("worker:0", "worker:1") == own[1]
    assert "Runs worker/program.py, which other nodes share." in own[0]
    assert plan.node("ps:0").program == "ps-0/program.py"  # other blocks than ps:1


def test_each_program_of_several_nodes_is_written_once(tmp_path):
    """Two workers with one program, two with another, and a server."""
    spec = two_layers(
        nodes="{worker: {count: 4}, ps: {count: 1}}",
        first="/node:worker:0-1",
        second="/node:worker:2-3",
    )
    plan = compile_model(load_model(spec), tmp_path / "build")
    assert [node.program for node in plan.nodes] == [
        "worker/program.py",
        "worker/program.py",
        "worker/program_2.py",
        "worker/program_2.py",
        "ps-0/program.py",
    ]


def test_a_process_of_threads_has_a_program_that_starts_it(builds):
    folder = builds / "digits_threads"
    assert not (folder / "worker-0.0").exists()
    text = (folder / "worker-0/program.py").read_text()
    assert text.startswith(
        '"""worker:0 of digits_threads: 2 workers (4 threads), 1 server.'
    )
    assert "Runs worker/program.py and worker/program_2.py, in 2 threads." in text
    shared = (folder / "worker/program_2.py").read_text()
    assert shared.startswith('"""worker:0-1.1 of digits_threads: ')


def test_a_program_that_is_not_of_one_process_says_how_it_is_run(builds, tmp_path):
    one = {"worker": 1}
    compile_model(find_file("specs/digits_threads.yaml"), tmp_path / "b", nodes=one)
    for program, node in {
        builds / "digits/worker/program.py": "worker:0",
        tmp_path / "b/worker-0.1/program.py": "worker:0",
    }.items():
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(program), run_name="__main__")
        command = f"`placer run {program.parents[1]} --node {node}`"
        assert str(caught.value).endswith(command), program
