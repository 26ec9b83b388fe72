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
    """What a README says of a model: arguments and outputs with their types, the
    columns of its rows, its modules, the packages that these import, the files of its
    sparse tables, and the StableHLO
    files with their notes."""

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
        "A trained model, exported by placer, which is not needed to use it.",
        "",
        f"- inputs: {', '.join(f'`{each}`' for each in model.types)}",
        f"- outputs: {', '.join(f'`{each}`' for each in model.outputs)}",
        "",
        "`batch` is any number of rows. There is no dropout, and batch normalization"
        " uses its running statistics.",
        "",
        "| file | what it is |",
        "| --- | --- |",
        "| `model.py` | the model as a function of JAX arrays; it needs"
        f" {', '.join(others)} and {last} |",
        "| `ops/` | the functions that it calls as `ops.NAME`: files of placer |",
        "| `prepare.py` | from columns of rows to the arrays that the model takes; it"
        " needs numpy |",
        "| `postprocess.py` | from outputs to the columns of predictions: classes by their"
        " names; it needs numpy |",
        "| `params.safetensors` | the parameters, by their names in the spec |",
        "| `params.py` | loads them, and finds a damaged file; `model.py` imports it |",
    ]
    lines += [
        f"| `{name}.py` | functions that `model.py` calls, with what they import |"
        for name in model.modules
    ]
    if model.tables:
        lines.append(
            "| `tables.py` | looks up the rows of sparse tables; it needs numpy and"
            " pyarrow |"
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
        lines += ["`model.py` switches JAX to 64 bits, when it is imported.", ""]
    for file in model.files:
        lines += _use_of(file, listed, model.wide)
    today = date.today().isoformat()
    lines += [
        "The file has the format of `jax.export`, which needs the package `flatbuffers`. The parameters are arguments, so that"
        " one file serves every checkpoint of the model. It has been lowered for"
        f" {', '.join(PLATFORMS)}, for one device.",
        "",
        f"It was written on {today} by jax {version('jax')} and jaxlib"
        f" {version('jaxlib')}. JAX guarantees that it can be loaded by versions of jax"
        " and jaxlib that are up to 6 months newer, or up to 3 weeks older; `model.py`"
        " has no such limit.",
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
        f"    outputs = model.call(params, {listed})  # arrays of just these types",
        "",
    ]
    return lines
