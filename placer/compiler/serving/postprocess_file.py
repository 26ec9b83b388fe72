"""Writes postprocess.py: from the outputs of a model to the columns of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.emit.code import Call, literal
from placer.compiler.serving.definitions import copies_of_placer
from placer.compiler.serving.imports import import_lines
from placer.plan.class_prefixes import class_prefixes
from placer.plan.plan import Output

_MODULE = "placer.runtime.prediction.class_columns"
_IMPORTS = (
    "from collections.abc import Mapping",
    "from typing import Any",
    "import numpy as np",
)


def write_postprocess(title: str, outputs: Sequence[Output]) -> str:
    """Return the text of postprocess.py.

    Args:
        title: the first line of its docstring.
        outputs: the outputs of the model.
    """
    copies = copies_of_placer({"postprocess", "outputs", "columns"})
    prefixes = class_prefixes(outputs)
    body: list[str] = ["    columns: dict[str, np.ndarray] = {}"]
    columns: list[str] = []
    for output in outputs:
        key = literal(output.name)
        if output.classes is None:
            columns.append(output.name)
            body.append(f"    columns[{key}] = np.asarray(outputs[{key}])")
            continue
        classes, prefix = output.classes, prefixes[output.name]
        columns += [f"{prefix}class", f"{prefix}probability.NAME"]
        arguments = [f"outputs[{key}]", literal(classes.form)]
        if classes.names:
            arguments.append(literal(classes.names))
        if prefix:
            arguments.append(f"prefix={literal(prefix)}")
        name = copies.add(_MODULE, "class_columns")
        lines = [line.text for line in Call(name, arguments).lines(1)]
        body += [f"    columns |= {lines[0].strip()}", *lines[1:]]
    imports, definitions = copies.definitions()
    lines = [
        f'"""{title}',
        "",
        "    predictions = postprocess(outputs)",
        "",
        "It needs only NumPy.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *import_lines([*imports, *_IMPORTS]),
        "",
        "",
        "def postprocess(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:",
        '    """Return the columns of predictions, as `placer predict` writes them.',
        "",
        "    Args:",
        "        outputs: the result of `model`.",
        "",
        "    Returns:",
        "        An array with a value for each row, by name:",
        f"            {', '.join(map(literal, columns))}.",
        '    """',
        *body,
        "    return columns",
    ]
    return "\n\n\n".join(["\n".join(lines), *definitions]) + "\n"
