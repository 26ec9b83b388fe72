"""Exports a trained model to a folder that does not need placer."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from placer.compiler.build_or_spec import build_folder, is_spec
from placer.compiler.frontend.unknown_arguments import hides_rest, refuse_unknown
from placer.compiler.graph.graph import Graph
from placer.compiler.graph.text import parse_graph
from placer.errors import CheckpointWarning, PlacerError
from placer.place.types import TensorType
from placer.plan.folder import check_outside, read_file
from placer.plan.modules import modules_in
from placer.plan.plan import MODEL, Plan, SparseTable, data_root, read_plan
from placer.plan.settings.data.feature_columns import source_columns
from placer.plan.settings.training.slicing import Block
from placer.system.callsite import warn_at_caller
from placer.system.files.nearest_path import path_hint
from placer.system.files.utf8 import check_utf8
from placer.system.reentry import refuse_in_node

if TYPE_CHECKING:
    import numpy as np

    from placer.compiler.serving.model_file import ModelFile
    from placer.runtime.saving.start_parameters import StartParameters

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class ExportedModel:
    """An exported model.

    Attributes:
        folder: the folder.
        files: its files, and the folder `ops`.
        arguments: the arguments of `model` besides the parameters, in order.
        outputs: the names of the outputs.
        warnings: warnings, for example about an op that needs a fixed batch.
    """

    folder: Path
    files: tuple[str, ...]
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    warnings: tuple[str, ...]


@hides_rest
def export(
    build: AnyPath,
    out: AnyPath,
    *,
    params: AnyPath | Mapping[str, np.ndarray],
    outputs: Sequence[str] = (),
    batch: Sequence[int] = (),
    **unknown: Never,
) -> ExportedModel:
    """Export a trained model to a folder that does not need placer.

    The folder contains:

    - `model.py`: the model as a function of JAX arrays;
    - `ops/`: the functions of its ops;
    - `prepare.py`: converts columns of rows to the arguments of the model;
    - `postprocess.py`: converts outputs to the columns of `placer predict`, with class
      names;
    - `params.safetensors`, `params.py`: the parameters, and a function that loads them;
    - `model.stablehlo`: the model as StableHLO in the format of `jax.export`;
    - `README.md`.

    Dropout is removed, and batch normalization uses its running statistics. A model
    with sparse tables takes rows instead of keys: each table is a Parquet file, and
    `tables.py` looks up its rows.

    Args:
        build: a build folder whose spec has `predict.outputs`, or that was compiled
            with `outputs`. It may have any number of nodes. Or a spec, a YAML file or
            `FILE.py:FUNCTION`, which is compiled into a temporary folder for one process,
            with `outputs`.
        out: the folder to write: a new or an empty one.
        params: the parameters: a dict of arrays such as `Result.params`, a file written
            by `save_params` of `launch`, or a checkpoint. Sparse tables need a
            checkpoint.
        outputs: the outputs of the build to export; by default all.
        batch: the batch sizes of the StableHLO files. By default there is one file for
            any batch size. If an op needs a fixed size, there is a file for one row, a
            file for the batch of the spec, and a warning.

    Returns:
        The exported model.

    Raises:
        SpecError, PlaceError, GraphError: for a mistake in the spec.
        PlacerError: if an argument is invalid, the build has no outputs, the folder is
            not empty, or a module cannot be used without placer.
        DataError: if the parameters do not fit the model.

    Example:
        placer.export("build", "model", params="model.safetensors")
    """
    refuse_in_node("placer.export")
    refuse_unknown("export", unknown)
    if is_spec(build):
        compiled = build_folder(
            Path(build), single_process=True, outputs=outputs or None
        )
        with compiled as folder:
            return _export(folder, Path(out), params, outputs, batch)
    return _export(Path(build), Path(out), params, outputs, batch)


def _export(
    folder: Path,
    target: Path,
    params: AnyPath | Mapping[str, np.ndarray],
    outputs: Sequence[str],
    batch: Sequence[int],
) -> ExportedModel:
    from placer.runtime.saving.parameter_files import file_of_parameters

    plan = read_plan(folder)
    graph = _graph_of(folder, plan, outputs)
    _check_target(target, folder)
    with file_of_parameters(params) as file, _folder_beside(target) as work:
        start = _open_parameters(file, plan, graph)
        model = _write(work, folder, plan, graph, start, batch)
        work.chmod(0o755)
        work.replace(target)
    return ExportedModel(target, *model)


@contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """Yield a new folder to write the files in; it becomes `target` at the end."""
    work = None
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        yield work
    except OSError as error:
        raise PlacerError(f"cannot write '{target}': {error.strerror}") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def _graph_of(folder: Path, plan: Plan, outputs: Sequence[str]) -> Graph:
    """Return the graph of a prediction in one process, with the chosen outputs."""
    from placer.compiler.graph.if_training import is_output
    from placer.compiler.graph.needed_ops import needed_ops
    from placer.runtime.prediction.request import (
        PredictionRequest,
        check_columns,
        chosen_outputs,
    )

    chosen = chosen_outputs(plan, PredictionRequest("", outputs=tuple(outputs)))
    check_columns(chosen)
    names = {output.name for output in chosen}
    text = read_file(folder, MODEL, plan.files.get(MODEL)).decode()
    graph = parse_graph(text, str(folder / MODEL))
    ops = needed_ops(
        graph.ops, lambda op: is_output(op) and op.attrs["output"] in names
    )
    return graph.with_ops(ops)


def _check_target(target: Path, build: Path) -> None:
    check_utf8(target, PlacerError)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PlacerError(f"cannot write '{target}': it is not a folder")
    if target.is_dir() and any(target.iterdir()):
        raise PlacerError(
            f"'{target}' contains files", hint="use an empty or a new folder"
        )
    if not target.absolute().parent.is_dir():
        raise PlacerError(
            f"cannot write '{target}': the folder '{target.parent}' does not exist",
            hint=path_hint(target.parent, Path.is_dir),
        )
    check_outside(target, build)


def _open_parameters(path: Path, plan: Plan, graph: Graph) -> StartParameters:
    """Open the parameters of a file or a checkpoint; check that they fit the graph."""
    from placer.compiler.serving.code import tables_of
    from placer.runtime.saving.start_parameters import check_start, open_parameters

    def warn(text: str) -> None:
        warn_at_caller(text, CheckpointWarning)

    stored = open_parameters(path, warn, finite=plan.settings.train.nan == "stop")
    needed = {op.name for op in graph.parameters}
    declared = {
        each.name: TensorType(each.dtype, each.shape)
        for each in plan.parameters
        if each.name in needed or each.name in stored.types
    }
    check_start(stored, declared, tables_of(plan, graph))
    return stored


def _read_parameters(start: StartParameters, graph: Graph) -> dict[str, Any]:
    blocks = []
    for name in sorted(op.name for op in graph.parameters):
        shape = start.types[name].sizes(1)
        blocks.append(Block(name, name, 0, prod(shape), shape))
    arrays = zip(blocks, start.read(blocks), strict=True)
    return {block.parameter: array.reshape(block.shape) for block, array in arrays}


def _write(
    work: Path,
    build: Path,
    plan: Plan,
    graph: Graph,
    start: StartParameters,
    batch: Sequence[int],
) -> tuple[tuple[str, ...], ...]:
    """Write all files to a folder; return the fields of `ExportedModel` after `folder`."""
    from placer.compiler.serving.code import serving_code, tables_of
    from placer.compiler.serving.tables_file import file_of_table
    from placer.compiler.serving.user_modules import OWN_MODULES, packages_of
    from placer.exporting.readme import Described, write_readme
    from placer.runtime.saving import parameter_files

    def read_module(name: str) -> str:
        file = f"{name}.py"
        return read_file(build, file, plan.files[file]).decode()

    code = serving_code(plan, graph, build, read_module, data_root(build))
    for path, content in code.files.items():
        file = work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    parameter_files.save(work / "params.safetensors", _read_parameters(start, graph))
    tables = tables_of(plan, graph)
    if tables:
        _write_tables(work, plan, tables, code.keys, start)
    files, notes = _write_stablehlo(work, plan, graph, code.model, batch, code.wide)
    inputs = code.model.types
    outputs = {
        op.attrs["output"]: graph.tensor_type(op.operands[0])
        for op in graph.of_kind("output")
    }
    readme = write_readme(
        Described(
            plan.name,
            tuple(inputs),
            [f"{name}: {kind}" for name, kind in inputs.items()],
            [f"{name}: {kind}" for name, kind in outputs.items()],
            [
                c
                for feed in code.feeds.values()
                for n in feed
                for c in source_columns(n, code.features)
            ],
            sorted(p.stem for p in work.glob("*.py") if p.stem not in OWN_MODULES),
            packages_of(code.modules),
            [*map(file_of_table, tables)],
            files,
            notes,
            code.wide,
        )
    )
    (work / "README.md").write_text(readme, encoding="utf-8")
    written = sorted(path.name for path in work.iterdir())
    return tuple(written), tuple(inputs), tuple(outputs), tuple(notes)


def _write_tables(
    work: Path,
    plan: Plan,
    tables: Mapping[str, SparseTable],
    keys: Mapping[str, str],
    start: StartParameters,
) -> None:
    from placer.compiler.serving.tables_file import file_of_table
    from placer.publishing.rows_file import RowsFile
    from placer.runtime.saving.row_files import read_partitions

    checkpoint = start.checkpoint
    assert checkpoint is not None  # `check_start` has checked it
    for name, table in tables.items():
        dim, path = table.settings.dim, work / file_of_table(name)
        with RowsFile(path, dim, table.dtype, keys[name]) as file:
            for arrays in read_partitions(
                checkpoint,
                ((name, number) for number in range(table.settings.partitions)),
                ("keys", "values"),
                finite=plan.settings.train.nan == "stop",
            ):
                file.add(arrays["keys"], arrays["values"][:, :dim])
            file.finish()


def _write_stablehlo(
    work: Path,
    plan: Plan,
    graph: Graph,
    model: ModelFile,
    batch: Sequence[int],
    wide: bool,
) -> tuple[list[str], list[str]]:
    """Write the StableHLO files; return their names, and warnings."""
    from placer.compiler.serving.model_file import WIDE
    from placer.exporting.stablehlo import (
        SymbolicBatchError,
        load_model,
        lower,
        own_modules,
    )

    assert plan.prediction is not None
    parameters = {op.name: graph.tensor_type(op.name) for op in graph.parameters}
    inputs = model.types
    with modules_in(work, built=False), own_modules(work):
        function = load_model(model.text, work / "model.py", [WIDE])
        lowered = partial(lower, function, parameters, inputs, wide=wide)
        notes = []
        if not batch:
            try:
                (work / "model.stablehlo").write_bytes(lowered(None))
                return ["model.stablehlo"], []
            except SymbolicBatchError as error:
                batch = sorted({1, plan.prediction.batch})
                sizes = " and ".join(map(str, batch))
                notes.append(
                    f"`{error.op}` cannot be exported for a batch of any size"
                    f" ({error.cause}): the StableHLO files are for batches of"
                    f" {sizes}. Choose other sizes with `--batch`. `model.py`"
                    " takes any batch."
                )
        files = []
        for size in batch:
            files.append(f"model_batch_{size}.stablehlo")
            (work / files[-1]).write_bytes(lowered(size))
    return files, notes
