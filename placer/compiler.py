"""The compiler from one end to the other: a spec in, a build folder out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from placer.analysis.memory import check_memory
from placer.analysis.schedule import Schedule, make_schedule
from placer.analysis.schedule_text import print_schedule
from placer.analysis.units import Phase
from placer.build.modules import LARGEST_MODULE
from placer.build.plan import FILE, SOURCES, Plan, sealed, sha256, to_json
from placer.build.plan_check import check_plan
from placer.build.write import write_build
from placer.config.initializers import file_of
from placer.emit.plan import make_plan
from placer.emit.programs import Programs, programs, sources
from placer.emit.tables import plan_tables
from placer.errors import BuildError, SpecError, SpecErrors
from placer.files.regular import open_regular, read_regular
from placer.graph.graph import Graph, Op
from placer.graph.model import Model
from placer.graph.text import print_graph
from placer.passes import lower
from placer.passes.send_and_recv import send_and_recv
from placer.reentry import refuse_at_import, refuse_in_node

if TYPE_CHECKING:
    from placer.front.program import Program

Watch = Callable[[str, Graph], None]


def compile(
    spec: str | Path | Model | Program,
    out: str | Path,
    *,
    nodes: Mapping[str, int] | None = None,
    single_process: bool = False,
    code: bool = True,
    after_pass: Watch | None = None,
) -> Plan:
    """Compile a spec into a build folder, and return its plan.

    A spec is a YAML file, a Program, or `FILE.py:FUNCTION` whose function returns one.
    `nodes` overrides how many there are of each node kind; `single_process` compiles
    the same spec for one process, the reference of R1. With `code=False` no Python of
    the spec is run, and a spec that needs that is refused. `after_pass` is shown every
    pass's name and graph. Raises SpecError, PlaceError or GraphError for a mistake in
    the spec, BuildError when the folder cannot be written, PlacerError where a node
    would compile it again as it imports the caller.
    """
    made = compiled(
        spec,
        out,
        nodes=nodes,
        single_process=single_process,
        code=code,
        after_pass=after_pass,
    )
    write_build(Path(out), made.files)
    return made.plan


@dataclass(frozen=True, slots=True)
class Compiled:
    """A build that is not written yet: its plan, and each file's path and content."""

    plan: Plan
    files: Mapping[str, bytes]


def compiled(
    spec: str | Path | Model | Program,
    out: str | Path,
    *,
    nodes: Mapping[str, int] | None = None,
    single_process: bool = False,
    code: bool = True,
    after_pass: Watch | None = None,
) -> Compiled:
    """As `compile`, and nothing is written; `out` is where the build would lie."""
    refuse_in_node("placer.compile")
    with _without_collection():
        if not isinstance(spec, Model):
            from placer.front.read import read

            spec = read(spec, nodes=nodes, single_process=single_process, code=code)
        refuse_at_import("placer.compile", spec.folder, spec.modules)
        if calls := spec.graph.of_kind("call"):
            if not code:
                raise _code_needed(calls)
            # It imports JAX, which nothing else in the compiler needs.
            from placer.tracing import traced

            spec = traced(spec)
        step, evaluation = lowered(spec, after_pass)
        tables = plan_tables(spec, step, evaluation)
        schedule = make_schedule(step, spec.schedule)
        step = send_and_recv(step)
        evaluation = evaluation and send_and_recv(evaluation)
        found = phases(spec, step, evaluation)
        made = programs(step, found, tables, schedule)
        texts = build_files(spec, found, schedule, made)
        files = {path: text.encode() for path, text in texts.items()}
        files |= weight_files(spec)
        hashes = {path: sha256(content) for path, content in files.items()}
        plan = make_plan(spec, found, tables, schedule, made.of_node, hashes)
        plan = sealed(plan)
        check_memory(plan, spec)
        check_plan(plan, FILE)
        files[FILE] = to_json(plan).encode()
        files[SOURCES] = _sources(spec, step, Path(out)).encode()
    return Compiled(plan, files)


def _code_needed(calls: Sequence[Op]) -> SpecErrors:
    """An error at each op, as the spec has them, whose function would be traced."""
    written = {op.source: op for op in reversed(calls)}
    return SpecErrors(
        SpecError(
            f"op '{op.name}' calls {op.attrs['fn']}, which has to be run to compile it",
            span=span,
            hint="without --no-code it is: docs/security.md",
        )
        for span, op in reversed(written.items())
    )


def lowered(model: Model, watch: Watch | None = None) -> tuple[Graph, Graph | None]:
    """The final graphs: of a training step, and of an evaluation if there is one."""
    step: Graph | None = None
    evaluation: Graph | None = None
    for name, graph in lower(model.graph, model.eval.batch if model.eval else None):
        if watch:
            watch(name, graph)
        if name == "segment" and step is None:
            step = graph
        elif name == "segment":
            evaluation = graph
    assert step is not None
    return step, evaluation


def phases(model: Model, step: Graph, evaluation: Graph | None) -> list[Phase]:
    """What is emitted of a model: its training step and, where there is one, its
    evaluation."""
    full = model.train.remainder == "drop"
    found = [Phase(step, step.batch if full else None, evaluating=False)]
    if evaluation is not None:
        assert model.eval is not None
        full = model.eval.remainder == "drop"
        rows = evaluation.batch if full else None
        found.append(Phase(evaluation, rows, evaluating=True))
    return found


def build_files(
    model: Model, found: Sequence[Phase], schedule: Schedule, made: Programs
) -> dict[str, str]:
    """The programs, the text of the graphs and of the schedule, and the spec's modules:
    path in the folder, and text."""
    files = {"graph.txt": "\n".join(print_graph(phase.graph) for phase in found)}
    if schedule.turns:
        files["schedule.txt"] = print_schedule(schedule)
    files.update(made.files)
    for module in model.modules:
        files[f"{module}.py"] = _module(model.folder / f"{module}.py")
    return files


def weight_files(model: Model) -> dict[str, bytes]:
    """The files that parameters begin with: path in the folder, and content."""
    named = (file_of(op.attrs["init"]) for op in model.graph.of_kind("parameter"))
    files = {}
    for name in filter(None, dict.fromkeys(named)):
        try:
            files[name] = model.files.get(name) or _weights(model.folder / name)
        except OSError as error:
            raise BuildError(f"'{name}' cannot be read: {error}") from error
    return files


def _weights(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _sources(model: Model, step: Graph, out: Path) -> str:
    """Where each op was written, and the spec's own place, relative to the build."""
    spec = model.folder / Path(model.file).name
    place = Path(os.path.relpath(spec, out)).as_posix()
    places = {
        name: [line, column]
        for name, file, line, column in sources(step)
        if file == model.file  # and not a module that it imports
    }
    found = msgspec.json.encode({"spec": place, "ops": places})
    return msgspec.json.format(found, indent=1).decode() + "\n"


def _module(path: Path) -> str:
    """A module of the spec, with its line ends as they are."""
    try:
        return read_regular(path, LARGEST_MODULE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"the spec's module '{path}' cannot be read: {error}"
        ) from error


@contextmanager
def _without_collection() -> Iterator[None]:
    """A compilation makes many small objects and no cycles worth collecting."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
