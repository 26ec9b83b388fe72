"""A spec's text to a Model: the sections in turn, their mistakes told together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as Counts
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from placer.errors import SpecError
from placer.files.regular import TooLargeError, read_at_most, read_regular
from placer.graph.graph import Graph, Op
from placer.graph.model import Model
from placer.spec.context import Context
from placer.spec.decode import decode
from placer.spec.names import Names, is_name
from placer.spec.op_parameters import Parameters, held
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.schema import Spec
from placer.spec.sections.data import read_data, read_inputs
from placer.spec.sections.graph import Builder
from placer.spec.sections.nodes import one_process, read_memory, read_nodes
from placer.spec.sections.parameters import Rule, read_rules, unfit
from placer.spec.sections.train import Group, Training, read_train
from placer.spec.tree import Mapping, Node
from placer.spec.values import Values
from placer.spec.weight_files import Weights
from placer.spec.yaml_events import MAX_BYTES, read, too_big


def load(
    path: str | Path,
    *,
    nodes: Counts[str, int] | None = None,
    single_process: bool = False,
) -> Model:
    """The model that a spec file describes.

    `nodes` overrides how many nodes of a kind there are. With `single_process` the
    cluster is one worker and nothing is placed: the reference for every placement.
    Raises SpecError for one mistake, SpecErrors for several.
    """
    path = Path(path)
    try:
        content = _content(path)
    except TooLargeError as error:
        raise too_big(str(path)) from error
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"{path}: line {line} is not UTF-8"
        raise SpecError(message, hint="save the spec as UTF-8") from error
    return load_text(
        text, str(path), path.parent, nodes=nodes, single_process=single_process
    )


def _content(path: Path) -> bytes:
    """The bytes of a spec: of a file, or of what this process was started with, as
    /dev/stdin. Raises OSError."""
    if not _IS_OPEN(str(path)):
        return read_regular(path, MAX_BYTES)
    with path.open("rb") as file:
        return read_at_most(file, MAX_BYTES)


_IS_OPEN = re.compile(r"/dev/stdin|(/dev|/proc/self)/fd/[0-9]+").fullmatch
"""Whether a path is a descriptor of this process."""


def load_text(
    text: str,
    file: str,
    folder: Path,
    *,
    nodes: Counts[str, int] | None = None,
    single_process: bool = False,
) -> Model:
    """As `load`, from text; `file` names it in errors, paths are from `folder`."""
    root, mistakes = read(text, file)
    return load_tree(
        root,
        file,
        folder,
        nodes=nodes,
        single_process=single_process,
        mistakes=mistakes,
    )


def load_tree(
    root: Node | None,
    file: str,
    folder: Path,
    *,
    nodes: Counts[str, int] | None = None,
    single_process: bool = False,
    mistakes: Iterable[SpecError] = (),
    files: Counts[str, bytes] = MappingProxyType({}),
) -> Model:
    """As `load_text`, from the tree; `mistakes` were made before there was one, and
    `files` are those of initial values that do not lie in the folder."""
    problems = Problems(mistakes)
    if not isinstance(root, Mapping):
        span = root.span if root is not None else None
        problems.add(
            f"{file} is empty" if root is None else "a spec is a mapping of sections",
            span,
            "begin with name, nodes, inputs, data, graph and train",
        )
        problems.raise_any()
    assert isinstance(root, Mapping)
    model = _model(root, file, folder, nodes, single_process, problems, files)
    problems.raise_any()
    assert model is not None
    return model


def _model(
    root: Mapping,
    file: str,
    folder: Path,
    counts: Counts[str, int] | None,
    single_process: bool,
    problems: Problems,
    files: Counts[str, bytes],
) -> Model | None:
    good = decode(root, Spec, "the spec", problems)
    names = Names(problems)
    name = _name(root, file, names)
    cluster = read_nodes(good.get("nodes"), counts, problems)
    places = Places(cluster, problems)
    wide = good.get("precision") == "float64"
    inputs = read_inputs(good.get("inputs"), wide, names, problems)
    rows = read_data(good.get("data"), inputs, folder, problems)
    rules = read_rules(good.get("parameters"), problems)
    training = read_train(good.get("train"), places, rows, problems)
    section = good.get("inputs")
    spans = (
        {key: scalar.span for key, scalar in section.keys.items()}
        if isinstance(section, Mapping)
        else {}
    )
    typed = {key: type_ and held(type_, wide) for key, type_ in inputs.items()}
    values = Values(typed, spans, good.get("graph"), problems)
    parameters = Parameters(
        values, rules, training.groups, wide, problems, Weights(folder, files)
    )
    seed = good.get("seed", 0)
    builder = Builder(
        Context(values, parameters, places, names, wide, seed, folder, problems)
    )
    builder.build(good.get("graph"))
    recipe = _recipe(values, training)
    if not problems:
        _check_groups(parameters, rules, training.groups, problems)
    if problems or cluster is None or rows.train is None or name is None:
        return None
    ops = [*values.ops, *recipe]
    parts = training.microbatches
    if single_process:
        parts = 1
        cluster, ops = one_process(cluster), [replace(op, place=None) for op in ops]
    return Model(
        graph=Graph(name, cluster, rows.train.batch, tuple(ops), parts),
        inputs={key: type_ for key, type_ in typed.items() if type_ is not None},
        train=rows.train,
        eval=rows.eval,
        epochs=training.epochs,
        schedule=training.schedule,
        nan=training.nan,
        seed=good["seed"],
        precision=good["precision"],
        emulate=good["emulate"],
        metrics=tuple(node.text for node in training.metrics),
        folder=folder,
        file=file,
        modules=tuple(dict.fromkeys((*rows.modules, *builder.modules))),
        narrowed=tuple(
            key
            for key, type_ in inputs.items()
            if type_ and typed[key] != type_ and not wide
        ),
        files=files,
        memory={} if single_process else read_memory(good.get("nodes")),
    )


def _name(root: Mapping, file: str, names: Names) -> str | None:
    """The spec's own name, else the file's."""
    node = root.get("name")
    return name_of(file) if node is None else names.read(node, "'name'")


def name_of(file: str) -> str:
    """A file's name, with `_` for what the name of a model cannot hold."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", Path(file).stem)[:64]
    return stem if is_name(stem) else f"spec_{stem}"[:64]


def _recipe(values: Values, training: Training) -> list[Op]:
    """What is recorded, how parameters are updated, what is minimised.

    A loss that is no metric is recorded to be watched, in training only.
    """
    ops = []
    for node in training.metrics:
        if values.is_scalar(node, "loss" if node is training.minimize else "metric"):
            attrs: dict[str, Any] = {"metric": node.text}
            if (final := values.final(node.text)) is not None:
                attrs["final"] = final
            ops.append(Op("record", (node.text,), (), attrs, None, node.span))
    for group in training.groups:
        ops.append(Op("optimizer", (), (), group.attrs, group.place, group.span))
    loss = training.minimize
    # As a metric of its own it has been looked at.
    if loss and (loss in training.metrics or values.is_scalar(loss, "loss")):
        if loss.text not in {node.text for node in training.metrics}:
            watched = {"metric": loss.text, "watched": True}
            ops.append(Op("record", (loss.text,), (), watched, None, loss.span))
        attrs = {"clip": training.clip} if training.clip else {}
        place = training.backward
        ops.append(Op("minimize", (loss.text,), (), attrs, place, loss.span))
    return ops


def _check_groups(
    parameters: Parameters, rules: list[Rule], groups: list[Group], problems: Problems
) -> None:
    """Every parameter has its optimizer, and every pattern its parameter."""
    names = list(parameters.spans)
    patterns = [rule.pattern for rule in rules]
    patterns += [group.pattern for group in groups if group.pattern is not None]
    unfit(patterns, names, problems)
    if parameters.untaken:
        first, *rest = parameters.untaken
        others = f" and {len(rest)} more" if rest else ""
        problems.add(
            f"no optimizer takes the parameter '{first}'{others}",
            parameters.spans[first],
            "end with an optimizer without 'match', or set trainable: false",
        )
    for group in groups:
        if group.pattern is None and not group.taken:
            hint = None if names else "the graph has no parameter to train"
            problems.add("this optimizer takes no parameter", group.span, hint)
