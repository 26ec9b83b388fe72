"""Writes README.md of an exported model."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from typing import Final

from placer.exporting.stablehlo import PLATFORMS

_NEEDED: Final = ("jax", "numpy", "safetensors")
"""The packages that every exported model needs."""


@dataclass(frozen=True)
class Described:
    """The facts about an exported model that its README lists.

    They are arguments and outputs with their types, the columns of its rows, its
    modules and the packages that these import, the files of its sparse tables, and the
    StableHLO files with notes.
    """

    name: str
    arguments: Sequence[str]
    types: Sequence[str]
    outputs: Sequence[str]
    columns: Sequence[str]
    modules: Sequence[str]
    packages: Set[str]
    tables: Sequence[str]
    files: Sequence[str]
    notes: Sequence[str]
    wide: bool


def write_readme(model: Described) -> str:
    """Return the text of README.md."""
    listed = ", ".join(model.arguments)
    given = "prepare(columns)"
    if model.tables:
        given = f"look_up(tables, **{given})"
    *others, last = dict.fromkeys([*_NEEDED, *sorted(model.packages)])
    rows = ", ".join(f'"{name}": […]' for name in dict.fromkeys(model.columns))
    lines = [
        f"# {model.name}",
        "",
        "A trained model, exported by placer. It works without placer.",
        "",
        f"- inputs: {', '.join(f'`{each}`' for each in model.types)}",
        f"- outputs: {', '.join(f'`{each}`' for each in model.outputs)}",
        "",
        "`batch` is any number of rows. Dropout is removed, and batch"
        " normalization uses its running statistics.",
        "",
        "| file | content |",
        "| --- | --- |",
        "| `model.py` | the model as a function of JAX arrays; it needs"
        f" {', '.join(others)} and {last} |",
        "| `ops/` | the functions that `model.py` calls as `ops.NAME`, copied"
        " from placer |",
        "| `prepare.py` | converts columns of rows to the arrays that the model"
        " takes; it needs NumPy |",
        "| `postprocess.py` | converts outputs to columns of predictions, with"
        " the names of classes; it needs NumPy |",
        "| `params.safetensors` | the parameters, by their names in the spec |",
        "| `params.py` | loads the parameters and detects a damaged file;"
        " imported by `model.py` |",
    ]
    lines += [
        f"| `{name}.py` | functions that `model.py` calls, with their imports |"
        for name in model.modules
    ]
    if model.tables:
        lines.append(
            "| `tables.py` | looks up the rows of sparse tables; it needs NumPy"
            " and pyarrow |"
        )
    lines += [
        f"| `{name}` | a sparse table: the columns `key` and `row` |"
        for name in model.tables
    ]
    lines += [f"| `{name}` | the model as StableHLO |" for name in model.files]
    lines += [
        "",
        "## As a function of JAX",
        "",
        "    import jax",
        "    from model import load_params, model",
        "    from postprocess import postprocess",
        "    from prepare import prepare",
        *(["    from tables import load_tables, look_up"] if model.tables else []),
        "",
        '    params = load_params("params.safetensors")',
        *(["    tables = load_tables()"] if model.tables else []),
        f"    columns = {{{rows}}}",
        f"    outputs = jax.jit(model)(params, **{given})",
        "    predictions = postprocess(outputs)",
        "",
    ]
    if model.wide:
        lines += ["Importing `model.py` enables 64-bit numbers in JAX.", ""]
    for file in model.files:
        lines += _use_of(file, listed, model.wide)
    today = date.today().isoformat()
    lines += [
        "The file has the format of `jax.export`, which needs the package"
        " `flatbuffers`. The parameters are arguments, so one file serves every"
        f" checkpoint of the model. It was lowered for {', '.join(PLATFORMS)}, for"
        " one device.",
        "",
        f"It was written on {today} by jax {version('jax')} and jaxlib"
        f" {version('jaxlib')}. JAX guarantees that versions of jax and jaxlib up"
        " to 6 months newer, or up to 3 weeks older, can load it. `model.py` has"
        " no such limit.",
    ]
    lines += ["", *model.notes] if model.notes else []
    return "\n".join(lines) + "\n"


def _use_of(file: str, listed: str, wide: bool) -> list[str]:
    lines = [
        f"## {file}",
        "",
        "    import jax",
        "    from jax import export",
        "    from safetensors.flax import load_file",
        "",
    ]
    if wide:
        lines.append('    jax.config.update("jax_enable_x64", True)')
    lines += [
        f'    with open("{file}", "rb") as opened:',
        "        model = export.deserialize(bytearray(opened.read()))",
        '    params = load_file("params.safetensors")',
        f"    outputs = model.call(params, {listed})  # arrays of exactly these types",
        "",
    ]
    return lines
