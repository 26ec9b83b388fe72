"""Optax optimizers in specs and programs: their keys, their errors, and their notes."""

from __future__ import annotations

import inspect

import pytest
from click.testing import CliRunner
from msgspec import structs
from support import optax_rules
from support.builds import error_parts
from support.small_models import load_model, two_layers

import placer
from placer.command.cli import commands
from placer.compiler.driver import compile_in_memory
from placer.compiler.graph.text import parse_graphs, print_graph
from placer.errors import BuildError, PlacerError, SpecError
from placer.plan.check import check_plan
from placer.plan.plan import to_json
from placer.plan.table_text import describe_optimizer
from placer.report.summary import process_memory
from placer.runtime.metrics.learning_rates import rate_schedules

RULES = inspect.getsource(optax_rules)
SERVERS, WORKERS = "place: /node:ps/cpu", "place: /node:worker/cpu"
SMALL_BLOCKS = "  slicing: {min_block: 2}"
TABLE = """\
name: table
precision: float64
nodes: {worker: {count: 1}}
inputs: {k: "int64[batch, 2]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: e, op: embedding, in: k, dim: 4, sparse: true}
  - {name: loss, op: reduce_mean, in: e}
train:
  minimize: loss
  epochs: 1
  optimizer: {op: optax, fn: "rules:adan", learning_rate: 0.1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("specs")
    (path / "rules.py").write_text(RULES)
    return path


def spec_with(fn, *settings, rate="0.1", **changes):
    rates = [f"learning_rate: {rate}"] if rate else []
    settings = ", ".join(["op: optax", f'fn: "rules:{fn}"', *rates, *settings])
    return two_layers(optimizer=f"{{{settings}}}", **changes)


def compiled(text, folder):
    return compile_in_memory(load_model(text, folder))


STAGES = {
    "nodes": "{worker: {count: 2}}",
    "first": "/node:worker:0/cpu",
    "second": "/node:worker:1/cpu",
}
WRONG_KEYS = {
    "hyperparameter": (
        spec_with("adan", "b1: 0.8"),
        "train.optimizer has 'b1', but the function of an optax optimizer sets its"
        " hyperparameters",
        "remove b1, and set it in the function named by 'fn'",
    ),
    "misspelled": (
        spec_with("adan", "eval_parms: 'rules:mean'"),
        "unknown key 'eval_parms' in train.optimizer",
        "did you mean 'eval_params'?",
    ),
    "no function": (
        two_layers(optimizer="{op: optax, learning_rate: 0.1}"),
        "'fn' is missing in train.optimizer",
        None,
    ),
    "arguments": (
        spec_with("adan", "with: b1"),
        "'with' must be a mapping, not the text 'b1'",
        "write {b1: 0.9}",
    ),
    "no module": (
        two_layers(optimizer="{op: optax, fn: adan}"),
        "'adan' is not of the form MODULE:FUNCTION",
        "write fn: optimizers:make",
    ),
    "no file": (
        two_layers(optimizer="{op: optax, fn: 'ruls:adan'}"),
        "ruls.py is not in the folder of the spec",
        None,
    ),
    "evaluations": (
        spec_with("adan", "eval_params: mean"),
        "'mean' is not of the form MODULE:FUNCTION",
        "write eval_params: optimizers:mean",
    ),
    "rate": (
        spec_with("adan", rate="-1.0"),
        "'learning_rate' must be a number from 0",
        None,
    ),
    "decay": (
        spec_with("adan", train="") + "parameters: [{match: '*.b', decay: false}]\n",
        "'decay: false' of '*.b' has no effect on an optax optimizer",
        "leave decay out, and exclude the parameters in rules:adan, as with the mask of"
        " optax.adamw",
    ),
    "staleness": (
        spec_with(
            "schedule_free",
            SERVERS,
            "update: {async: {staleness_scale: true}}",
            rate="",
        ),
        "'staleness_scale' has no effect: it divides the learning rate, and this optax"
        " optimizer takes none",
        "leave staleness_scale out, or give the function a parameter learning_rate",
    ),
    "outer": (
        spec_with(
            "adan", "update: {geo: {every: 2, outer: {op: optax, learning_rate: 1.0}}}"
        ),
        "'optax' cannot be an outer optimizer",
        "use nesterov, sgd or adam",
    ),
}


@pytest.mark.parametrize(
    ("text", "message", "hint"), WRONG_KEYS.values(), ids=WRONG_KEYS
)
def test_a_wrong_key_is_an_error(text, message, hint, folder):
    with pytest.raises(SpecError) as caught:
        load_model(text, folder)
    assert message in caught.value.message
    if hint is not None:
        assert caught.value.hint == hint


def test_a_sparse_table_is_refused(folder):
    with pytest.raises(SpecError) as caught:
        load_model(TABLE, folder)
    assert "an optax optimizer cannot train sparse tables" in caught.value.message
    assert "op: adagrad" in str(caught.value.hint)


def test_the_entry_of_a_table_before_it_is_accepted(folder):
    both = "optimizer: [{match: 'e.*', op: adagrad, learning_rate: 0.1}, {op: optax"
    text = TABLE.replace("optimizer: {op: optax", both).rstrip("\n") + "]\n"
    text = text.replace("in: e}", "in: h}").replace(
        "  - {name: loss", "  - {name: h, op: fc, in: e, size: 2}\n  - {name: loss"
    )
    assert compiled(text, folder).plan.transformations["1"].parameters == ("h.w", "h.b")


REFUSED = {
    "no rate": (
        spec_with("adan", rate=""),
        "the function takes learning_rate, but the optimizer sets none",
        "write learning_rate: 0.001, or a schedule",
    ),
    "rate without effect": (
        spec_with("schedule_free"),
        "'learning_rate' has no effect: the function does not take it",
        "write def schedule_free(learning_rate): …, or leave learning_rate out",
    ),
    "no such function": (
        spec_with("adam_"),
        "rules.py has no function 'adam_'",
        "did you mean 'adam'?",
    ),
    "no such argument": (
        spec_with("schedule_free", "with: {warmup: 3}", rate=""),
        "the function cannot be called: got an unexpected keyword argument 'warmup'",
        'pass its arguments by name: with: {b1: 0.9}, in Python (function, {"b1": 0.9})',
    ),
    "rate among the arguments": (
        spec_with("adan", "with: {learning_rate: 0.1}"),
        "'with' has learning_rate, which changes during training",
        "write learning_rate next to fn, or call the parameter lr",
    ),
    "no hash": (
        spec_with("unhashable", rate=""),
        "'unhashable' of rules.py is a Unhashable, which has no hash",
        "write a function that calls it, with def, or give Unhashable a method __hash__",
    ),
    "needs the loss": (
        spec_with("of_the_loss", rate=""),
        "placer passes only gradients and parameters",
        None,
    ),
    "several servers": (
        spec_with("together", SERVERS),
        "rules:together updates 'h.w', 'h.b' and 2 more together, but they are on ps:0-1",
        "place the optimizer on one server, as with place: /node:ps:0/cpu; a limit of the"
        " norm of all gradients works on several nodes if optax.clip_by_global_norm is"
        " first in the chain",
    ),
    "ranges of workers": (
        spec_with("together", WORKERS, "shard_state: true", width=64),
        "together, but they are on worker:0-1",
        "leave shard_state out, so that each worker updates all parameters; a limit of the"
        " norm of all gradients works on several nodes if optax.clip_by_global_norm is"
        " first in the chain",
    ),
    "a schedule of the rate": (
        spec_with("warm_up_to", SERVERS),
        "rules:warm_up_to raised TracerBoolConversionError: ",
        "while placer traces the function, learning_rate and arrays have no values for 'if'"
        " or float(): give a schedule of optax its numbers, and leave learning_rate out of"
        " the function and the optimizer",
    ),
    "stages of a pipeline": (
        spec_with("together", **STAGES),
        "together, but they are on worker:0-1",
        "place the optimizer on one node, as with place: /node:worker:0/cpu; a limit of"
        " the norm of all gradients works on several nodes if optax.clip_by_global_norm is"
        " first in the chain",
    ),
    "merged": (
        spec_with("muon", SERVERS, train="  slicing: {dispatch: merged}"),
        "optax optimizer rules:muon keeps 'h.w' on one server, but 'dispatch: merged'"
        " slices all parameters as one",
        "use dispatch: balanced",
    ),
    "two clips": (
        spec_with("clipped", "clip: {norm: 1.0}"),
        "both the clip of this optimizer and rules:clipped clip the gradients",
        "keep one of them: remove the clip of this optimizer, or"
        " optax.clip_by_global_norm",
    ),
    "train.clip": (
        spec_with("clipped", train="  clip: {norm: 1.0}"),
        "both train.clip and rules:clipped clip the gradients",
        "keep one of them: remove train.clip, or optax.clip_by_global_norm",
    ),
    "evaluations of local values": (
        spec_with(
            "schedule_free",
            SERVERS,
            "eval_params: 'rules:schedule_free_params'",
            "update: {geo: {every: 2}}",
            rate="",
        ),
        "'eval_params: rules:schedule_free_params' needs the optimizer's state where the"
        " evaluated parameters are, but here each worker has its own state",
        None,
    ),
}


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_an_optimizer_that_cannot_run_is_an_error_at_its_entry(
    text, message, hint, folder
):
    with pytest.raises(PlacerError) as caught:
        compiled(text, folder)
    assert message in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.text.lstrip().startswith("optimizer: {op: optax")
    if hint is not None:
        assert caught.value.hint == hint


UNUSED = "  - {name: unused, op: fc, in: x, size: 3}"


def test_parameters_without_a_gradient_are_not_in_the_tree(folder):
    """The optimizer does not update them, as with other rules."""
    plan = compiled(spec_with("adan", extra=UNUSED), folder).plan
    assert plan.transformations["0"].parameters == ("h.w", "h.b", "out.w", "out.b")
    only = "{match: 'unused.*', op: optax, fn: 'rules:adan', learning_rate: 0.1}"
    optimizers = f"[{only}, {{op: sgd, learning_rate: 0.1}}]"
    with pytest.raises(PlacerError) as caught:
        compiled(two_layers(optimizer=optimizers, extra=UNUSED), folder)
    assert caught.value.message.startswith("this optimizer trains nothing: 'loss' does")


def test_the_hints_of_these_errors_work(folder):
    compiled(spec_with("together", "place: /node:ps:0/cpu"), folder)
    compiled(spec_with("together", WORKERS, width=64), folder)
    compiled(spec_with("together", "place: /node:worker:0/cpu", **STAGES), folder)
    compiled(spec_with("clipped", SERVERS), folder)


def test_a_clip_at_the_top_of_the_chain_is_a_clip_of_the_spec(folder):
    plan = compiled(spec_with("clipped", SERVERS), folder).plan
    assert plan.transformations["0"].clip == pytest.approx(0.05)
    own = "{op: sgd, learning_rate: 0.1, clip: {global_norm: 0.05}}"
    of_placer = compiled(two_layers(optimizer=own), folder).plan
    assert [each.nbytes for each in plan.step_edges] == [
        each.nbytes for each in of_placer.step_edges
    ]


def test_a_chain_with_a_clip_may_have_no_other_clip_but_another_entry_may(folder):
    second = "{match: '*.b', op: sgd, learning_rate: 0.1, clip: {value: 0.1}}"
    text = two_layers(
        optimizer=f"[{second}, {{op: optax, fn: 'rules:clipped', learning_rate: 0.1}}]"
    )
    groups = compiled(text, folder).plan.transformations
    assert [each.parameters for each in groups.values()] == [("h.w", "out.w")]


def test_graphs_with_an_optax_optimizer_are_parsed_from_their_text(folder):
    shapes = {"width": 96, "precision": "float64"}
    text = spec_with("muon", WORKERS, "shard_state: true", **shapes)
    build = compiled(text, folder)
    graphs = build.files["graph.txt"].decode()
    assert "/whole]" in graphs
    assert [*map(print_graph, parse_graphs(graphs))] == graphs.split("\n\n")[:-1] or (
        "\n".join(map(print_graph, parse_graphs(graphs))) == graphs
    )


def test_builds_are_the_same_and_contain_the_file(folder):
    text = spec_with("decayed_matrices", SERVERS, train=SMALL_BLOCKS)
    one, other = compiled(text, folder), compiled(text, folder)
    assert one.files == other.files
    assert one.files["rules.py"].decode() == RULES
    assert one.plan.modules == ("rules",)


PROGRAM = """\
import rules
from placer import Program, layers, optimizer, place_guard


def by_name():
    return build("rules:schedule_free", "rules:schedule_free_params")


def by_object():
    make = (rules.schedule_free, {"warmup_steps": 3})
    return build(make, rules.schedule_free_params)


def elsewhere():
    import optax
    return build(optax.adam, None)


def build(fn, eval_params):
    with Program(
        nodes={"worker": {"count": 1}},
        data={"train": {"source": "npz:rows.npz", "batch": 8}},
        epochs=1,
    ) as program:
        x = layers.data("x", "float32[batch, 4]")
        loss = layers.reduce_mean(layers.fc(x, 2), name="loss")
        with place_guard("/node:worker/cpu"):
            optimizer.Optax(fn, eval_params=eval_params, match="*").minimize(loss)
    return program
"""


@pytest.fixture
def program_file(folder):
    path = folder / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("name", ["by_name", "by_object"])
def test_a_program_names_its_functions(name, program_file):
    build = compile_in_memory(f"{program_file}:{name}")
    (found,) = build.plan.transformations.values()
    assert (found.fn, found.eval_params) == (
        "rules:schedule_free",
        "rules:schedule_free_params",
    )
    assert found.config == ('{"warmup_steps": 3}' if name == "by_object" else "")
    assert build.plan.modules == ("rules",)


def test_a_function_of_another_folder_is_refused(program_file):
    with pytest.raises(SpecError) as caught:
        compile_in_memory(f"{program_file}:elsewhere")
    message, at, hint = error_parts(caught.value, str(program_file))
    assert message.startswith("'adam' is in ")
    assert "which is not in the same folder" in message
    assert (
        at == 'optimizer.Optax(fn, eval_params=eval_params, match="*").minimize(loss)'
    )
    assert hint == "move the file next to the program: nodes import it from the build"


def test_compile_names_what_is_not_cut_and_counts_without_a_barrier(folder):
    spec = folder / "muon.yaml"
    settings = {"precision": "float64", "train": SMALL_BLOCKS}
    spec.write_text(spec_with("muon", SERVERS, "update: async", **settings))
    result = CliRunner().invoke(
        commands, ["compile", str(spec), "--out", str(folder / "b")]
    )
    assert result.exit_code == 0, result.output
    assert "  not cut for rules:muon: h.w, out.w\n" in result.output
    assert (
        "  workers are asynchronous, so counts in the state of rules:muon are the updates"
        " of one parameter on one node: "
    ) in result.output
    explained = CliRunner().invoke(commands, ["explain", str(folder / "b"), "h.w"])
    assert (
        "not cut for rules:muon: its update is not computed element by element"
        in explained.output
    )


def test_a_schedule_that_counts_the_updates_of_all_workers_is_a_warning(folder):
    one_worker = {"nodes": "{worker: {count: 1}, ps: {count: 1}}"}
    at_once = [
        spec_with("adam_at_one_rate", "update: async", SERVERS, rate=""),
        spec_with("clipped", "update: async", SERVERS),
        spec_with("adam_with_schedule", SERVERS, rate=""),
        spec_with("adam_with_schedule", "update: half_async", rate="", **one_worker),
        spec_with(
            "adam_with_schedule",
            "update: {async: {max_staleness: 2}}",
            WORKERS,
            rate="",
        ),
    ]
    for text in at_once:
        compiled(text, folder)
    text = spec_with("adam_with_schedule", "update: half_async", SERVERS, rate="")
    with pytest.warns(placer.SpecWarning) as caught:
        compiled(text, folder)
    (warning,) = caught
    assert str(warning.message).startswith(
        "model.yaml:19:15: the schedule of rules:adam_with_schedule advances 2 times as fast"
        " as the steps: with 'update: half_async' each of the 2 workers adds 1 to '1.count'"
    )
    assert "hint: take learning_rate in the function" in str(warning.message)


def test_a_mask_by_ndim_keeps_a_matrix_from_being_flattened(folder):
    shape = {"width": 96, "precision": "float64"}
    settings = (WORKERS, "shard_state: true")
    text = spec_with("decayed_matrices", *settings, **shape)
    optimizers = [
        line
        for line in compiled(text, folder).files["graph.txt"].decode().splitlines()
        if line.startswith("  optimizer(")
    ]
    assert "its equations on a block differ" in optimizers[0]


def test_without_code_the_optimizer_is_refused(folder):
    model = load_model(spec_with("adan"), folder)
    with pytest.raises(PlacerError) as caught:
        compile_in_memory(model, code=False)
    assert "compiling the optimizer needs to run rules:adan" in str(caught.value)


def test_a_rule_without_a_rate_has_none_in_the_plan(folder):
    plan = compiled(spec_with("schedule_free", rate=""), folder).plan
    (rate,) = {table.learning_rate for node in plan.nodes for table in node.tables}
    assert rate is None
    assert to_json(plan).count('"learning_rate": null') == len(
        [table for node in plan.nodes for table in node.tables]
    )


def test_tables_are_described_with_their_function_and_state(folder):
    settings = (
        SERVERS,
        "with: {warmup_steps: 3}",
        "eval_params: 'rules:schedule_free_params'",
    )
    plan = compiled(spec_with("schedule_free", *settings, rate=""), folder).plan
    (description,) = {
        describe_optimizer(plan, table) for node in plan.nodes for table in node.tables
    }
    assert description.startswith(
        "optax rules:schedule_free with {warmup_steps: 3}; state "
    )
    assert description.endswith("; evaluations use rules:schedule_free_params")
    with_rate = compiled(spec_with("adan", "update: async"), folder).plan
    table = with_rate.node("ps:0").tables[0]
    assert describe_optimizer(with_rate, table) == (
        "optax rules:adan: learning rate 0.1; state 0.m, 0.v, 0.n, 0.g, 0.t; update async"
    )


def test_an_optimizer_without_a_rate_reports_none(folder):
    plan = compiled(spec_with("schedule_free", rate=""), folder).plan
    assert rate_schedules(plan) == {}
    both = "[{match: '*.b', op: sgd, learning_rate: 0.5}, {op: optax, fn: 'rules:%s'}]"
    plan = compiled(two_layers(optimizer=both % "schedule_free"), folder).plan
    assert [*rate_schedules(plan)] == ["sgd"]
    plan = compiled(spec_with("adan", rate="0.25"), folder).plan
    assert {name: rate(7) for name, rate in rate_schedules(plan).items()} == {
        "optax": 0.25
    }


def test_the_state_is_part_of_the_memory_of_servers(folder):
    def memory_of(optimizer):
        plan = compiled(two_layers(optimizer=optimizer, width=64), folder).plan
        servers = [m for name, m in process_memory(plan).items() if "ps" in name]
        total = sum(m.values + m.slots + m.copies for m in servers)
        assert total == sum(node.table_bytes for node in plan.nodes)
        return [sum(getattr(m, of) for m in servers) for of in ("slots", "copies")]

    elements, counts = 64 * 64 + 64 + 64 * 4 + 4, 4 * 4
    moments = 2 * 4 * elements + counts
    # Each update makes new arrays of the values and of both moments.
    assert memory_of("{op: optax, fn: 'rules:adam', learning_rate: 0.1}") == [
        moments,
        4 * elements + moments,
    ]
    assert memory_of("{op: adam, learning_rate: 0.1}") == [2 * 4 * elements, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transformations": {}}, "the plan has no optax optimizer '0'"),
        ({"modules": ()}, "its optimizer 'rules:adan' is not in a module of the plan"),
    ],
)
def test_a_plan_without_the_optimizer_of_a_table_is_damaged(change, message, folder):
    plan = structs.replace(compiled(spec_with("adan"), folder).plan, **change)
    with pytest.raises(BuildError) as caught:
        check_plan(plan, "plan.json")
    assert message in str(caught.value)


def test_a_parameter_that_its_optimizer_does_not_know_is_an_error(folder):
    plan = compiled(spec_with("adan"), folder).plan
    known = structs.replace(plan.transformations["0"], parameters=("h.w",))
    with pytest.raises(BuildError) as caught:
        check_plan(structs.replace(plan, transformations={"0": known}), "plan.json")
    assert "its optimizer has no parameter 'h.b'" in str(caught.value)


def test_a_program_with_an_optax_optimizer_has_yaml(program_file):
    result = CliRunner().invoke(commands, ["to-yaml", f"{program_file}:by_object"])
    assert result.exit_code == 0, result.output
    entry = result.output[result.output.index("  optimizer:") :]
    assert entry.split("\n")[1:5] == [
        "    op: optax",
        '    fn: "rules:schedule_free"',
        "    with: {warmup_steps: 3}",
        '    eval_params: "rules:schedule_free_params"',
    ]
