"""Which tables are updated in place, and which apply gradients as they arrive."""

import inspect
import re
from typing import get_type_hints

import jax
import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import compile as compile_model
from placer.compiler.driver import compile_in_memory
from placer.plan.plan import Plan
from placer.system.resources import find_file


def compiled(folder, metrics="[loss]", **parts) -> tuple[Plan, str]:
    """Compile two layers; return the plan and the program of the first server."""
    text = two_layers(**parts).replace("metrics: [loss]", f"metrics: {metrics}")
    plan = compile_model(load_model(text), folder)
    program = folder / "ps-0" / "program.py"
    return plan, program.read_text() if program.exists() else ""


def in_place(plan: Plan) -> dict[str, bool]:
    return {
        f"{node.name} {table.name}": table.in_place
        for node in plan.nodes
        for table in node.tables
    }


def test_a_server_updates_in_place_what_its_workers_read(tmp_path):
    plan, program = compiled(tmp_path)
    assert set(in_place(plan).values()) == {True}
    how = "in chunks, adds all workers' values in node order, then "
    assert how in re.sub(r"\n *# ", " ", program)
    assert "node.receive(" not in program


def test_a_single_process_updates_in_place(tmp_path):
    plan, _ = compiled(tmp_path, nodes="{worker: {count: 1}}")
    assert in_place(plan) == {"worker:0 dense": True}


def test_a_reader_without_a_gradient_prevents_updates_in_place(tmp_path):
    # All training is on worker:0; worker:1 reads a parameter for a metric only.
    plan, _ = compiled(
        tmp_path,
        "[loss, other]",
        extra="  - {name: other, op: reduce_sum, in: h.w, place: '/node:worker:1'}\n",
        first="/node:worker:0/cpu",
        second="/node:worker:0/cpu",
    )
    in_place_of = {
        block.parameter: table.in_place
        for node in plan.nodes
        for table in node.tables
        for block in table.blocks
    }
    assert in_place_of["h.w"] is False


def test_a_recorded_parameter_is_not_updated_in_place(tmp_path):
    extra = (
        "  - {name: s, op: parameter, shape: [], init: ones}\n"
        "  - {name: scaled, op: mul, in: [loss, s]}\n"
    )
    one = "{worker: {count: 1}}"
    for minimize, metrics, safe in (
        ("scaled", "[loss]", True),
        ("scaled", "[loss, s]", False),
    ):
        text = two_layers(nodes=one, extra=extra)
        text = text.replace("minimize: loss", f"minimize: {minimize}")
        text = text.replace("metrics: [loss]", f"metrics: {metrics}")
        plan = compile_model(load_model(text), tmp_path / metrics)
        assert in_place(plan) == {"worker:0 dense": safe}


@pytest.mark.parametrize(
    "train", ["  clip: {global_norm: 1.0}\n", "  clip: {value: 1.0}\n"]
)
def test_clipped_gradients_are_received_whole(tmp_path, train):
    _, program = compiled(tmp_path, train=train)
    assert "node.receive(" in program
    assert "node.update_from_edges(" not in program
    assert "node.update(" in program


def test_a_two_phase_rule_is_not_streamed(tmp_path):
    _, program = compiled(tmp_path, optimizer="{op: lamb, learning_rate: 0.1}")
    assert "node.update_from_edges(" not in program
    assert "node.compute_directions(" in program
    assert "node.apply_directions(" in program


def chain(length):
    """Layers alternately on worker:0 and worker:1."""
    layers = "".join(
        f"  - {{name: h{i + 1}, op: fc, in: h{i}, size: 4,"
        f" place: '/node:worker:{i % 2}/cpu'}}\n"
        for i in range(length)
    )
    return two_layers(width=4).replace(
        "  - {name: loss, op: mean_squared_error, in: [out, y]}\n",
        f"  - {{name: h0, op: tanh, in: out}}\n{layers}"
        f"  - {{name: loss, op: mean_squared_error, in: [h{length}, y]}}\n",
    )


def test_the_proof_follows_a_long_chain_of_messages(tmp_path):
    plan = compile_model(load_model(chain(150)), tmp_path)
    assert set(in_place(plan).values()) == {True}


def test_functions_keep_unused_inputs_of_other_segments(tmp_path):
    compile_model(load_model(chain(1)), tmp_path)
    program = (tmp_path / "worker-0" / "program.py").read_text()
    functions = [part for part in program.split("\n\n\n") if "jax.jit" in part]
    kept = {
        part.partition("def ")[2].partition("(")[0]: "keep_unused=True" in part
        for part in functions
    }
    first, *later = kept
    assert first == "forward"
    assert later
    assert not kept[first]
    assert all(kept[name] for name in later)


@pytest.mark.parametrize("spec", ["digits", "transformer_pipeline"])
def test_functions_that_use_all_arguments_compile_as_with_kept_ones(spec):
    checked = 0
    for path, text in compile_in_memory(find_file(f"specs/{spec}.yaml")).files.items():
        if not path.endswith("program.py"):
            continue
        program = {"__name__": path}
        exec(compile(text, path, "exec"), program)
        for name in ("squared_norm", "compute_clip_scale"):
            if name in program:
                arguments = arguments_of(program[name].__wrapped__)
                kept = jax.jit(program[name].__wrapped__, keep_unused=True)
                lowered = program[name].lower(*arguments)
                assert lowered.as_text() == kept.lower(*arguments).as_text()
                checked += 1
    assert checked == (3 if spec == "digits" else 2)


def arguments_of(function):
    """Return a number for each argument, or an instance of its class with numbers."""
    hints = get_type_hints(function)
    names = inspect.signature(function).parameters
    return [filled(hints[name]) if name in hints else 1.0 for name in names]


def filled(kind):
    if not issubclass(kind, tuple):
        return 1.0
    if hints := get_type_hints(kind):
        return kind(*map(filled, hints.values()))
    return kind(*[1.0] * len(kind._fields))
