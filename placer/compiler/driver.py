"""Runs the whole compiler, from a spec to a build folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Never

import msgspec

from placer.compiler.emit.classes import name_classes
from placer.compiler.emit.lanes import check_lanes, explain_lanes
from placer.compiler.emit.optax_tables import check_optax_tables
from placer.compiler.emit.plan import make_plan
from placer.compiler.emit.predicting import predicting_model
from placer.compiler.emit.programs import Programs, emit_programs
from placer.compiler.emit.source_map import make_sources
from placer.compiler.emit.tables import plan_tables
from placer.compiler.frontend.entries.weight_files import read_weight_files
from placer.compiler.frontend.single_process import to_single_process
from placer.compiler.frontend.unknown_arguments import hides_rest, refuse_unknown
from placer.compiler.graph.declared import calls_user_code
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.optax_groups import optax_optimizers
from placer.compiler.graph.structural_ops import OUTPUT
from placer.compiler.graph.text import print_graph
from placer.compiler.memory.input_ranges import limit_inputs
from placer.compiler.memory.node_memory import check_memory
from placer.compiler.passes import LoweredModel, PassObserver, lower, lower_prediction
from placer.compiler.passes.counted_schedules import find_counted_schedules
from placer.compiler.passes.messages.insert_conversions import UnevenBatchError
from placer.compiler.passes.predict import predict
from placer.compiler.passes.rates_of_zero import find_rates_of_zero
from placer.compiler.passes.row_pairs import find_row_pairs
from placer.compiler.schedule.schedule import Schedule, make_schedule
from placer.compiler.schedule.schedule_text import print_schedule
from placer.compiler.schedule.units import LoweredGraph
from placer.compiler.serving.in_build import (
    add_serving,
    check_publishes,
    publishing_model,
)
from placer.errors import (
    BuildError,
    PlacerError,
    Span,
    SpecError,
    SpecErrors,
    SpecWarning,
)
from placer.plan.check import check_plan
from placer.plan.hooks import HookName
from placer.plan.modules import MAX_MODULE_BYTES
from placer.plan.plan import (
    FILE,
    MODEL,
    SOURCES,
    CompileArguments,
    Plan,
    Sources,
    Table,
    read_plan,
    read_sources,
    sha256,
    sources_to_json,
    to_json,
    with_digest,
)
from placer.plan.settings.data.source import RowSource
from placer.plan.write import write_build
from placer.system.callsite import warn_at_caller
from placer.system.files.regular import read_regular
from placer.system.files.utf8 import check_utf8
from placer.system.garbage_collection import garbage_collection_off
from placer.system.reentry import refuse_at_import, refuse_in_node

if TYPE_CHECKING:
    from placer.compiler.frontend.python.overrides import Overrides
    from placer.compiler.frontend.python.program import Program


@hides_rest
def compile(
    spec: str | Path | Model | Program,
    out: str | Path,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Overrides | None = None,
    single_process: bool = False,
    outputs: Sequence[str] | None = None,
    code: bool = True,
    after_pass: PassObserver | None = None,
    **unknown: Never,
) -> Plan:
    """Compile a spec into a build folder, and return its plan.

    Args:
        spec: a YAML file, a Program, or `FILE.py:FUNCTION` with a function that returns
            a Program.
        out: the build folder. It is created if missing. It must be empty or contain a
            build, which is replaced.
        nodes: the number of nodes of each node kind, in place of the spec's.
        overrides: new values for keys of the spec, by key: `{"train.epochs": 5,
            "graph.h1.size": 64}`; or texts, as for `placer compile --set`. Address list
            items by number and ops by name. Overrides are applied in order, and cannot
            change ops and inputs of a Program.
        single_process: compile for one process, ignoring places. The process computes the
            same as all nodes together, as a reference.
        outputs: the outputs of a prediction, in place of the spec's `predict.outputs`.
        code: whether Python files of the spec may run. If False, a spec that needs them
            is an error.
        after_pass: called with each pass's name and the graph after the pass.

    Returns:
        The plan of the build.

    Raises:
        SpecError, PlaceError, GraphError: the spec has a mistake.
        BuildError: the folder cannot be written.
        PlacerError: an argument is unknown, `nodes` is combined with `single_process`, or
            the calling module is imported by nodes, which would compile the spec again.

    Warns:
        SpecWarning: the loss or a metric depends on an op that broadcasts [batch, 1] with
            [batch] to all pairs of rows, a learning rate is always 0, or a schedule of
            optax counts the updates of all asynchronous workers. `placer check` and other
            commands print this warning.

    Example:
        plan = placer.compile("digits.yaml", "build", nodes={"worker": 4})
    """
    refuse_unknown("compile", unknown)
    build = compile_in_memory(
        spec,
        nodes=nodes,
        overrides=overrides,
        single_process=single_process,
        outputs=outputs,
        code=code,
        after_pass=after_pass,
    )
    write_build(Path(out), build.files_in(Path(out)))
    build.plan.keep_folder(Path(out))
    return build.plan


@dataclass(frozen=True, slots=True)
class CompiledBuild:
    """A build before it is written.

    Attributes:
        plan: the plan.
        files: the content of each file by path, except sources.json.
        make_sources: returns the content of sources.json for a build folder.
        folder: the folder of the spec.
        data_spans: the positions in the spec of the keys of `data`.
    """

    plan: Plan
    files: Mapping[str, bytes]
    make_sources: Callable[[Path], Sources]
    folder: Path
    data_spans: Mapping[str, Span]

    def files_in(self, folder: Path) -> dict[str, bytes]:
        """Return the content of all files by path, for a build in `folder`."""
        sources = self.make_sources(folder)
        return {**self.files, SOURCES: sources_to_json(sources)}


def compile_in_memory(
    spec: str | Path | Model | Program,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Overrides | None = None,
    single_process: bool = False,
    outputs: Sequence[str] | None = None,
    code: bool = True,
    publish: bool = False,
    after_pass: PassObserver | None = None,
    change_step: Callable[[Graph], Graph] | None = None,
) -> CompiledBuild:
    """Compile a spec as `compile` does, but write nothing.

    With `publish`, the run publishes even if the spec has no `train.publish`. `change_step` is
    called with the graph of a training step after the last pass, and returns the graph to emit.
    Warnings point at the caller of the calling function.
    """
    refuse_in_node("placer.compile")
    if nodes and single_process:
        raise PlacerError(
            "'nodes' (--nodes) and 'single_process' (--single-process) cannot be combined",
            hint="leave one of them out: a single process ignores the spec's nodes",
        )
    given = spec
    with garbage_collection_off():
        if not isinstance(spec, Model):
            from placer.compiler.frontend.python.read import read_model

            if isinstance(spec, str | Path):
                check_utf8(Path(spec), SpecError)
            spec = read_model(spec, nodes=nodes, overrides=overrides, code=code)
        elif nodes or overrides:
            raise PlacerError("'nodes' and 'overrides' change a spec, not a Model")
        check_utf8(spec.folder, SpecError)
        spec = to_single_process(spec) if single_process else spec
        if outputs is not None:
            from placer.compiler.frontend.sections.outputs import with_outputs

            spec = with_outputs(spec, outputs)
        if publish:
            spec = publishing_model(spec)
        check_publishes(spec)
        refuse_at_import("placer.compile", spec.folder, spec.modules)
        spec = complete_model(spec, code=code)
        spec, lowered, tables = lower_to_tables(spec, after_pass)
        if change_step is not None:
            lowered = lowered._replace(step=change_step(lowered.step))
        weights = read_weight_files(spec)
        arguments = None
        if isinstance(given, str | Path) and not single_process:
            arguments = _arguments(str(given), nodes, outputs, code, publish)
        compiled = _emit(spec, lowered, tables, weights, arguments)
    warnings = (
        *find_row_pairs(spec.graph),
        *find_rates_of_zero(spec.graph),
        *find_counted_schedules(lowered.step),
    )
    for text in warnings:
        warn_at_caller(text, SpecWarning)
    return compiled


def complete_model(model: Model, *, code: bool = True) -> Model:
    """Return a model with all that passes need and the front end does not know: the blocks
    of traced functions, the state of optax optimizers, the ranges of inputs and classes.

    Args:
        model: a model of a front end.
        code: whether functions of the user may run. If False, a model that needs them is
            an error.

    Raises:
        SpecError: a function of the user has a mistake, or may not run.
    """
    calls = [op for op in model.graph.ops if calls_user_code(op)]
    optimizers = optax_optimizers(model.graph)
    if not code and (calls or optimizers):
        raise _no_code_errors([*calls, *optimizers])
    # Tracing imports JAX, which the rest of the compiler does not need.
    if calls:
        from placer.compiler.tracing.calls import complete_calls

        model = complete_calls(model)
    if optimizers:
        from placer.compiler.tracing.optimizers import describe_optimizers

        model = describe_optimizers(model)
    return name_classes(limit_inputs(model))


def compile_prediction(build: Path) -> CompiledBuild:
    """Compile the prediction of a build for one process.

    The result can only predict. It is compiled from the build's `model.txt`; the spec is
    not needed.

    Args:
        build: a build folder whose spec has outputs.

    Raises:
        BuildError: the folder is not a build, or was edited.
    """
    with garbage_collection_off():
        plan, sources = read_plan(build), read_sources(build)
        model = predicting_model(build, plan, sources)
        lowered = lower_prediction(model.graph)
        tables = plan_tables(model, lowered.step, lowered.evaluation)
        compiled = _emit(model, lowered, tables, {}, None)

    def make_sources(out: Path) -> Sources:
        """Return the sources with the original spec path, to which data is relative."""
        spec = str(build.absolute() / sources.spec)
        return msgspec.structs.replace(compiled.make_sources(out), spec=spec)

    return replace(compiled, make_sources=make_sources)


def _arguments(
    spec: str,
    nodes: Mapping[str, int] | None,
    outputs: Sequence[str] | None,
    code: bool,
    publish: bool,
) -> CompileArguments:
    """Return the arguments to compile the spec of a file again."""
    from placer.compiler.frontend.python.read import function_of

    listed = None if outputs is None else tuple(outputs)
    return CompileArguments(function_of(spec), dict(nodes or {}), listed, code, publish)


_Tables = Mapping[str, tuple[Table, ...]]
"""The tables of each node."""


def lower_to_tables(
    model: Model, observe: PassObserver | None = None
) -> tuple[Model, LoweredModel, _Tables]:
    """Run all passes and plan the tables.

    The passes run again while an optax optimizer cannot update the blocks that they chose.
    The returned model keeps such parameters whole.
    """
    if not optax_optimizers(model.graph):
        lowered = lower_model(model, observe)
        return model, lowered, plan_tables(model, lowered.step, lowered.evaluation)
    from placer.compiler.tracing.optimizers import keep_whole

    while True:
        lowered, graphs = _lower_and_observe(model)
        tables = plan_tables(model, lowered.step, lowered.evaluation)
        with_whole = keep_whole(model, tables)
        if with_whole is model:
            break
        model = with_whole
    if observe is not None:
        for name, graph in graphs:
            observe(name, graph)
    check_optax_tables(lowered.step, tables)
    return model, lowered, tables


def _lower_and_observe(
    model: Model,
) -> tuple[LoweredModel, list[tuple[str, Graph]]]:
    """Run all passes. Return their result, and the arguments for an observer."""
    graphs: list[tuple[str, Graph]] = []
    lowered = lower_model(model, lambda name, graph: graphs.append((name, graph)))
    return lowered, graphs


def _emit(
    model: Model,
    lowered: LoweredModel,
    tables: _Tables,
    weights: Mapping[str, bytes],
    arguments: CompileArguments | None,
) -> CompiledBuild:
    """Return the build of a lowered model; `weights` are its files of initial values, and
    `arguments` those of the compilation."""
    step = lowered.step
    schedule = make_schedule(step, model.settings.train.schedule)
    graphs = lowered_graphs(model, lowered)
    programs = emit_programs(step, graphs, tables, schedule)
    texts = text_files(model, graphs, schedule, programs)
    files = {path: text.encode() for path, text in texts.items()} | dict(weights)
    hashes = {path: sha256(content) for path, content in files.items()}
    plan = make_plan(model, graphs, tables, schedule, programs, hashes)
    if model.settings.train.publish is not None:
        plan = add_serving(plan, model, files)
    plan = with_digest(plan)
    check_lanes(plan, model)
    check_memory(plan, model)
    check_plan(plan, FILE)
    files[FILE] = to_json(plan).encode()
    return CompiledBuild(
        plan,
        files,
        partial(make_sources, model, graphs, programs, arguments),
        model.folder,
        model.data_spans,
    )


def _no_code_errors(calls: Sequence[Op]) -> SpecErrors:
    """Return an error for each op of the spec that calls user code, in order."""
    by_source = {op.source: op for op in reversed(calls)}
    return SpecErrors(
        SpecError(
            f"compiling {_called(op)} needs to run {op.attrs['fn']}",
            span=span,
            hint="leave --no-code out to run the function; see docs/reference/security.md",
        )
        for span, op in reversed(by_source.items())
    )


def _called(op: Op) -> str:
    return f"op '{op.name}'" if op.results else "the optimizer"


def lower_model(model: Model, watch: PassObserver | None = None) -> LoweredModel:
    """Run all passes; return the graphs of a step, an evaluation and a prediction.

    `watch` is called with each pass's name and the graph after the pass. Raises PlaceError
    or GraphError for a mistake in the spec.
    """
    try:
        return lower(model.graph, watch)
    except UnevenBatchError as error:
        explain_lanes(error, model)
        raise


def lowered_graphs(model: Model, lowered: LoweredModel) -> list[LoweredGraph]:
    """Return the graphs to emit: the step, and the evaluation and prediction if any."""
    hooks: list[tuple[HookName, Graph | None, RowSource | None]] = [
        ("step", lowered.step, model.train),
        ("evaluate", lowered.evaluation, model.eval),
        ("predict", lowered.prediction, model.prediction),
    ]
    graphs = []
    for hook, graph, rows in hooks:
        if graph is not None:
            assert rows is not None
            full = graph.batch if rows.remainder == "drop" else None
            graphs.append(LoweredGraph(graph, full, hook))
    return graphs


def text_files(
    model: Model,
    graphs: Sequence[LoweredGraph],
    schedule: Schedule,
    programs: Programs,
) -> dict[str, str]:
    """Return the text files of a build by path: programs, graphs, schedule, modules."""
    files = {"graph.txt": "\n".join(print_graph(lowered.graph) for lowered in graphs)}
    if schedule.tasks:
        files["schedule.txt"] = print_schedule(schedule)
    files.update(programs.files)
    if model.graph.of_kind(OUTPUT):
        # `placer export` uses this graph, which has one process and no places.
        files[MODEL] = print_graph(predict(to_single_process(model).graph))
    for module in model.modules:
        files[f"{module}.py"] = _read_module(model.folder / f"{module}.py")
    return files


def _read_module(path: Path) -> str:
    """Return the text of a module with unchanged line endings."""
    try:
        return read_regular(path, MAX_MODULE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"cannot read module '{path}' of the spec: {error}") from error
