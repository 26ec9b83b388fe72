"""Parses a spec to a Model, section by section, and reports all errors together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import convert

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.names import is_name
from placer.compiler.frontend.entries.values import Values
from placer.compiler.frontend.schema import Spec
from placer.compiler.frontend.sections.assignments import check_assignments
from placer.compiler.frontend.sections.data import RowSources, read_data
from placer.compiler.frontend.sections.features import inputs_with_keys
from placer.compiler.frontend.sections.graph import build_ops
from placer.compiler.frontend.sections.inputs import declare_inputs
from placer.compiler.frontend.sections.parameters import read_rules
from placer.compiler.frontend.sections.predict import read_predict
from placer.compiler.frontend.sections.threads import with_threads
from placer.compiler.frontend.sections.train import Training, read_train
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.events import MAX_BYTES, parse_yaml, too_big_error
from placer.compiler.frontend.yaml.overrides import Override, apply_overrides
from placer.compiler.frontend.yaml.problems import Problems, inner_span
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.errors import Span, SpecError
from placer.place.types import TensorType
from placer.plan.settings.run import ModelKeys, RunSettings
from placer.system.files.nearest_path import SPECS, path_hint
from placer.system.files.regular import TooLargeError, read_at_most, read_regular


def load(
    path: str | Path,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Sequence[Override] = (),
) -> Model:
    """Load the model of a spec file.

    Args:
        path: The spec. /dev/stdin and other open file descriptors may be pipes.
        nodes: Numbers of nodes by node kind. They replace the numbers in the spec.
        overrides: Keys with values that replace values of the spec, in order.

    Raises:
        SpecError: The spec has an error, or cannot be read.
        SpecErrors: The spec has several errors.
    """
    path = Path(path)
    if str(path).lower().endswith(_TABLES) and path.is_file():
        raise _table_error(path)
    try:
        content = _content(path)
    except TooLargeError as error:
        raise too_big_error(str(path)) from error
    except OSError as error:
        raise SpecError(
            f"cannot read {path}: {error.strerror}",
            hint=path_hint(path, folders=[SPECS]),
        ) from error
    if content.startswith(b"PAR1"):  # Parquet
        raise _table_error(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"{path}: line {line} is not UTF-8"
        raise SpecError(message, hint="save the spec as UTF-8") from error
    return load_text(text, str(path), path.parent, nodes=nodes, overrides=overrides)


_TABLES = (".csv", ".csv.gz", ".parquet")


def _table_error(path: Path) -> SpecError:
    return SpecError(
        f"{path} is a table, not a spec",
        hint=f"write a spec for it: placer init {shlex.quote(str(path))}",
    )


def _content(path: Path) -> bytes:
    """Read a spec from a regular file, or an open file descriptor such as
    /dev/stdin.
    """
    if not _IS_OPEN(str(path)):
        return read_regular(path, MAX_BYTES)
    with path.open("rb") as file:
        return read_at_most(file, MAX_BYTES)


_IS_OPEN = re.compile(r"/dev/stdin|(/dev|/proc/self)/fd/[0-9]+").fullmatch
"""Matches the paths of this process's file descriptors."""


def load_text(
    text: str,
    file: str,
    folder: Path,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Sequence[Override] = (),
) -> Model:
    """Load a model from the text of a spec; see `load`.

    Args:
        text: The YAML text.
        file: The name of the text in errors.
        folder: Paths in the spec are relative to this folder.
        nodes: Numbers of nodes by node kind, as in `load`.
        overrides: Replaced values, as in `load`.
    """
    root, errors = parse_yaml(text, file)
    return load_tree(
        root, file, folder, nodes=nodes, overrides=overrides, errors=errors
    )


def load_tree(
    root: SpecNode | None,
    file: str,
    folder: Path,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Sequence[Override] = (),
    errors: Iterable[SpecError] = (),
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Model:
    """Load a model from the tree of a spec; see `load_text`.

    Args:
        root: The tree; None for an empty document.
        file: The name of the spec in errors.
        folder: Paths in the spec are relative to this folder.
        nodes: Numbers of nodes by node kind, as in `load`.
        overrides: Replaced values, as in `load`.
        errors: Errors from parsing the text.
        files: Contents of files with initial values that are not in `folder`, by name.
    """
    problems = Problems(errors)
    if not isinstance(root, MappingNode):
        span = root.span if root is not None else None
        problems.add(
            f"{file} is empty"
            if root is None
            else "a spec must be a mapping of sections",
            span,
            "start with name, nodes, inputs, data, graph and train",
        )
        problems.raise_any()
    assert isinstance(root, MappingNode)
    root = apply_overrides(root, overrides, problems)
    good = decode(root, Spec, "the spec", problems, skipped=("name",))
    context = Context(good, folder, files, problems, nodes)
    name_node = root.get("name")
    name = (
        context.names.read(name_node, "'name'") if name_node else name_from_file(file)
    )
    written_types = declare_inputs(good.get("inputs"), context)
    rows = read_data(good.get("data"), written_types, context)
    _declare_keys(rows, written_types, context)
    training = read_train(good.get("train"), rows, context)
    values, parameters = context.values, context.parameters
    parameters.rules.extend(read_rules(good.get("parameters"), problems))
    parameters.groups.extend(training.groups)
    build_ops(good.get("graph"), context)
    training_ops = _training_ops(values, training)
    output_ops = read_predict(good.get("predict"), context)
    publish_span = _key_span(good.get("train"), "publish")
    cluster = context.cluster
    if cluster is not None:
        cluster = with_threads(cluster, training.threads, training.groups, problems)
    if not problems:
        check_assignments(parameters, good.get("train"), problems)
    problems.raise_any()
    outside = {key: good[key] for key in ModelKeys.__struct_fields__}
    settings = convert({**outside, "train": training.settings}, RunSettings)
    assert cluster is not None
    assert rows.train is not None
    assert name is not None
    ops = (*values.ops, *training_ops, *output_ops)
    eval_batch = rows.eval.batch if rows.eval is not None else None
    return Model(
        graph=Graph(
            name,
            cluster,
            rows.train.batch,
            ops,
            settings.train.microbatches,
            eval_batch,
        ),
        inputs={key: type_ for key, type_ in values.inputs.items() if type_},
        train=rows.train,
        eval=rows.eval,
        settings=settings,
        folder=folder,
        file=file,
        modules=tuple(context.modules),
        narrowed_inputs=tuple(
            key
            for key, type_ in written_types.items()
            if values.inputs[key] != type_ and not context.is_float64
        ),
        files=files,
        memory=context.memories,
        data_spans={**rows.spans, **_input_spans(good.get("inputs"))},
        publish_span=publish_span,
        overrides=tuple(override.text for override in overrides),
    )


def name_from_file(file: str) -> str:
    """Return a valid model name from the name of a file: other characters become
    `_`.
    """
    stem = re.sub(r"[^A-Za-z0-9_]", "_", Path(file).stem)[:64]
    return stem if is_name(stem) else f"spec_{stem}"[:64]


def _key_span(section: SpecNode | None, key: str) -> Span | None:
    keys = section.keys if isinstance(section, MappingNode) else {}
    return keys[key].span if key in keys else None


def _input_spans(section: SpecNode | None) -> dict[str, Span]:
    entries = section.entries if isinstance(section, MappingNode) else {}
    return {f"inputs.{name}": inner_span(node) for name, node in entries.items()}


def _declare_keys(
    rows: RowSources, types: Mapping[str, TensorType | None], context: Context
) -> None:
    """Declare the inputs that hold 64-bit keys, unless JAX has 64-bit integers
    enabled.
    """
    for data in (rows.train, rows.eval):
        if context.is_float64 or data is None or data.features is None:
            continue
        assert data.columns is not None
        for name in inputs_with_keys(types, data.columns, data.features):
            type_ = types[name]
            assert type_ is not None
            context.values.declare_keys(name, type_)


def _training_ops(values: Values, training: Training) -> list[Op]:
    """Return the ops `record`, `optimizer` and `minimize` for the section `train`. A
    loss that is not a metric is recorded too, in training only. The run stops if the
    loss is not finite."""
    ops = []
    for node in training.metrics:
        if values.check_scalar(node, "loss" if node is training.minimize else "metric"):
            attrs: dict[str, Any] = {"metric": node.text}
            if node.text in values.finalizers:
                attrs["final"] = values.finalizers[node.text]
            ops.append(Op("record", (node.text,), (), attrs, None, node.span))
    for group in training.groups:
        ops.append(Op("optimizer", (), (), group.attrs, group.place, group.span))
    loss = training.minimize
    # If the loss is a metric, the check above has covered it.
    if loss and (loss in training.metrics or values.check_scalar(loss, "loss")):
        if loss.text not in {node.text for node in training.metrics}:
            watched = {"metric": loss.text, "watched": True}
            ops.append(Op("record", (loss.text,), (), watched, None, loss.span))
        attrs = {"clip": training.clip} if training.clip else {}
        place = training.backward
        ops.append(Op("minimize", (loss.text,), (), attrs, place, loss.span))
    return ops
