"""Adds the code for serving to the build of a run that publishes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from placer import publishing
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import OUTPUT
from placer.compiler.graph.text import parse_graph
from placer.compiler.serving.errors import OpNotExportableError
from placer.errors import PlacerError, SpecError
from placer.plan.plan import DATA, MODEL, Plan, sha256
from placer.plan.serving import FOLDER, Serving
from placer.plan.settings.evaluation_and_stopping import Publishing

_README = """\
# {name}

Publications of a model, written by a run of placer. Serving works without placer:

    from model import model
    from postprocess import postprocess
    from prepare import prepare
    from served import load
    from tables import look_up  # of a model with sparse tables

    served = load()
    params, tables = served.current()
    outputs = model(params, **look_up(tables, **prepare(columns)))
    served.refresh()  # the newest publication

| file | content |
| --- | --- |
| `base-000001/` | a publication with all rows of the sparse tables |
| `delta-000002/` | the rows that have changed since the publication before, and the removed keys |
| `manifest.json` in them | the number, step, time, sizes and checksums |
| `params.safetensors` in them | the dense parameters |
| `model.py`, `prepare.py`, `postprocess.py`, `tables.py`, `ops/` | the code of the model |
| `served.py` | reads the publications; it needs numpy and pyarrow |
| `code.json` | the SHA-256 of each file of the code |
"""
_HINT = "name its outputs: predict: {outputs: [probability]}"


def publishing_model(model: Model) -> Model:
    """Return a model whose run publishes, by `train.publish` or by default."""
    train = model.settings.train
    publish = train.publish or Publishing()
    settings = structs.replace(
        model.settings, train=structs.replace(train, publishing=publish)
    )
    return replace(model, settings=settings)


def check_publishes(model: Model) -> None:
    """Raise SpecError if the model publishes, but has no outputs."""
    publishes = model.settings.train.publish is not None
    if publishes and not model.graph.of_kind(OUTPUT):
        raise SpecError(
            "'publish' needs 'predict', which names the outputs that are served",
            span=model.publish_span,
            hint=_HINT,
        )


def add_serving(plan: Plan, model: Model, files: dict[str, bytes]) -> Plan:
    """Add the code for serving to the files of a build; return the plan with it.

    Raises PlacerError if the model cannot be used without placer.
    """
    from placer.compiler.serving.code import serving_code, tables_of
    from placer.compiler.serving.input_columns import UnknownColumnsError

    graph = parse_graph(files[MODEL].decode(), MODEL)

    def read_module(name: str) -> str:
        return files[f"{name}.py"].decode()

    data = Path(os.environ.get(DATA) or model.folder)
    try:
        code = serving_code(plan, graph, model.folder, read_module, data, built=False)
    except PlacerError as error:
        span = model.publish_span
        if isinstance(error, OpNotExportableError):
            spans = {op.name: op.source for op in model.graph.ops}
            span = spans.get(error.op, span)
        elif isinstance(error, UnknownColumnsError):
            keys = ("train.columns", "train.source")
            span = next(
                (model.data_spans[k] for k in keys if k in model.data_spans), span
            )
        message = f"the model cannot be published: {error.message}"
        raise SpecError(message, span=span, hint=error.hint) from error
    served = Path(publishing.__file__).with_name("served.py").read_bytes()
    readme = _README.format(name=plan.name).encode()
    serving = {**code.files, "served.py": served, "README.md": readme}
    added = {f"{FOLDER}{path}": content for path, content in serving.items()}
    files |= added
    tables = {name: code.keys[name] for name in tables_of(plan, graph)}
    return structs.replace(
        plan,
        serving=Serving(tuple(sorted(op.name for op in graph.parameters)), tables),
        files=plan.files | {path: sha256(content) for path, content in added.items()},
    )
