"""Makes a model that only predicts from a build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.model import Model
from placer.compiler.graph.text import parse_graph
from placer.errors import Span
from placer.place.types import TensorType
from placer.plan.folder import read_file
from placer.plan.plan import MODEL, Plan, Sources
from placer.plan.settings.run import TrainSettings


def predicting_model(build: Path, plan: Plan, sources: Sources) -> Model:
    """Return the model that predicts with a build's parameters, in one process.

    It has all parameters of the build, so it can load the build's checkpoints. Their
    initial values are zeros.

    Args:
        build: the build folder, with the file `model.txt`.
        plan: the plan of the build.
        sources: the sources of the build.
    """
    text = read_file(build, MODEL, plan.files.get(MODEL)).decode()
    graph = parse_graph(text, str(build / MODEL))
    ops = [_as_written(op, sources) for op in graph.ops]
    nothing = TrainSettings(minimize="", metrics=[], nan=plan.settings.train.nan)
    return Model(
        graph=Graph(
            plan.name, graph.cluster, graph.batch, (*_unused(plan, graph), *ops)
        ),
        inputs={c.name: TensorType(c.dtype, ("batch", *c.shape)) for c in plan.columns},
        train=plan.train,
        eval=None,
        settings=replace(plan.settings, train=nothing),
        folder=build,
        file=Path(sources.spec).name,
        prediction=plan.prediction,
        classes={o.name: o.classes for o in plan.outputs if o.classes is not None},
        modules=plan.modules,
    )


def _as_written(op: Op, sources: Sources) -> Op:
    """Return an op of `model.txt` as it was before all passes, with its position."""
    attrs = {key: value for key, value in op.attrs.items() if key != "once"}
    attrs.pop("group", None)
    if op.kind == "parameter":
        attrs["init"] = "zeros"
    position = sources.ops.get(op.name)
    source = None if position is None else Span(Path(sources.spec).name, *position)
    return replace(op, attrs=attrs, source=source)


def _unused(plan: Plan, graph: Graph) -> Iterator[Op]:
    """Yield the parameters of a build that its predictions do not use."""
    used = {op.name for op in graph.parameters}
    for each in plan.parameters:
        if each.name not in used:
            value = Value(each.name, TensorType(each.dtype, each.shape))
            yield Op("parameter", (), (value,), {"init": "zeros"})
