"""Writes the code of a model for serving: everything of an export that has no parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import jax

from placer.compiler.graph.graph import Graph
from placer.compiler.serving import params
from placer.compiler.serving.errors import OpNotExportableError
from placer.compiler.serving.input_columns import input_columns
from placer.compiler.serving.lookups import keys_only
from placer.compiler.serving.model_file import ModelFile, has_wide_numbers, write_model
from placer.compiler.serving.op_modules import op_modules
from placer.compiler.serving.postprocess_file import write_postprocess
from placer.compiler.serving.prepare_file import write_prepare
from placer.compiler.serving.tables_file import write_tables_file
from placer.compiler.serving.user_modules import copy_modules, exported_names
from placer.errors import PlacerError, missing_package_hint
from placer.plan.modules import modules_in
from placer.plan.plan import Plan, SparseTable
from placer.plan.settings.data.features import Feature


@dataclass(frozen=True, slots=True)
class ServingCode:
    """The code of a model.

    Attributes:
        files: the content of each file, by path.
        model: the file model.py.
        feeds: the columns that each input reads.
        features: the features of the columns.
        modules: the texts of the user's modules, by name.
        keys: the dtype of the keys of each sparse table, by name.
        wide: whether the model computes with 64 bits.
    """

    files: Mapping[str, bytes]
    model: ModelFile
    feeds: Mapping[str, list[str]]
    features: Mapping[str, Feature]
    modules: Mapping[str, str]
    keys: Mapping[str, str]
    wide: bool


def serving_code(
    plan: Plan,
    graph: Graph,
    folder: Path,
    read_module: Callable[[str], str],
    data: Path,
    *,
    built: bool = True,
) -> ServingCode:
    """Return the code of a model.

    Args:
        plan: the plan, with a prediction.
        graph: the graph of the prediction in one process.
        folder: the folder of the user's modules: a build (`built`), or that of the spec.
        read_module: returns the text of a module of the user.
        data: the folder that paths of data files are relative to.

    Raises:
        PlacerError: if the model cannot be used without placer.
    """
    assert plan.prediction is not None
    wide = has_wide_numbers(graph, keys_only(graph))
    title = f"{plan.name}: %s. Exported by placer; works without placer."
    order = [column.name for column in plan.columns]
    exported = exported_names(plan.modules)
    with _user_modules(folder, wide, built=built) as load:
        model = write_model(graph, title % "the model in JAX", order, load, exported)
    copied = _copied_modules(graph, model, exported, read_module)
    texts = {f"{name}.py": text for name, text in copied.items()}
    texts["model.py"] = model.text
    texts["params.py"] = Path(params.__file__).read_text(encoding="utf-8")
    feeds, features = input_columns(plan, model.inputs, data)
    tables = tables_of(plan, graph)
    texts["prepare.py"] = write_prepare(
        title % "from columns of rows to the arguments of the model",
        plan.prediction,
        plan.columns,
        model.inputs,
        feeds,
        features,
        looks_up=bool(tables),
    )
    outputs = {op.attrs["output"] for op in graph.of_kind("output")}
    texts["postprocess.py"] = write_postprocess(
        title % "from outputs to the columns of predictions",
        [output for output in plan.outputs if output.name in outputs],
    )
    if tables:
        texts["tables.py"] = write_tables_file(
            title % "from keys to the rows that the model takes",
            tables,
            plan.settings.seed,
            model.inputs,
            [name for name in model.inputs.values() if name in model.types],
            model.lookups,
        )
    files = {f"ops/{path}": text for path, text in op_modules(model.ops).items()}
    files |= {path: text.encode() for path, text in texts.items()}
    dtypes = {column.name: column.dtype for column in plan.columns}
    keys = {}
    for name in tables:
        inputs = {each.input for each in model.lookups if each.table == name}
        is_wide = {dtypes[each] for each in inputs} == {"uint64"}
        keys[name] = "uint64" if is_wide else "int64"
    return ServingCode(files, model, feeds, features, copied, keys, wide)


def tables_of(plan: Plan, graph: Graph) -> dict[str, SparseTable]:
    """Return the sparse tables of a graph, by name."""
    needed = {op.name for op in graph.sparse_tables}
    return {each.name: each for each in plan.sparse_tables if each.name in needed}


def _copied_modules(
    graph: Graph,
    model: ModelFile,
    exported: Mapping[str, str],
    read: Callable[[str], str],
) -> dict[str, str]:
    """Return the texts of the user's modules, by name. An error names the first op whose
    function cannot be exported."""
    try:
        return copy_modules(model.functions, exported, read)
    except PlacerError:
        for op in graph.of_kind("call"):
            module = op.attrs["fn"].partition(":")[0]
            used = [f for f in model.functions if f.partition(":")[0] == module]
            try:
                copy_modules(used, exported, read)
            except PlacerError as error:
                raise OpNotExportableError(
                    op.name, error.message, hint=error.hint
                ) from error
        raise


@contextmanager
def _user_modules(
    folder: Path, wide: bool, *, built: bool
) -> Iterator[Callable[[str], Any]]:
    """Yield a function that imports MODULE:FUNCTION from a folder."""

    def load(path: str) -> Any:
        module, _, name = path.partition(":")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            raise PlacerError(
                f"{module}.py cannot be imported: {error}",
                hint=missing_package_hint(error),
            ) from error

    with jax.enable_x64(wide), modules_in(folder, built=built):
        yield load
