"""Runs an exported model in a process that cannot import placer.

    python -I run_exported.py FOLDER COLUMNS.npz OUTPUTS.npz

OUTPUTS gets the outputs of model.py, and those of each StableHLO file as `FILE:NAME`.
"""

import sys
from pathlib import Path


class WithoutPlacer:
    """Makes an import of placer an error."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "placer":
            raise ImportError("an exported model does without placer")


sys.meta_path.insert(0, WithoutPlacer())
folder, columns_file, outputs_file = map(Path, sys.argv[1:])
sys.path.insert(0, str(folder))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import export  # noqa: E402
from model import load_params, model  # noqa: E402
from prepare import prepare  # noqa: E402

with np.load(columns_file) as opened:
    columns = {name: opened[name].tolist() for name in opened}
params = load_params(folder / "params.safetensors")
arguments = prepare(columns)
if (folder / "tables.py").exists():
    from tables import load_tables, look_up

    arguments = look_up(load_tables(), **arguments)
outputs = dict(jax.jit(model)(params, **arguments))
for file in folder.glob("*.stablehlo"):
    lowered = export.deserialize(bytearray(file.read_bytes()))
    size = file.stem.rpartition("_")[2]
    rows = int(size) if size.isdigit() else None
    found = lowered.call(params, *(array[:rows] for array in arguments.values()))
    outputs |= {f"{file.name}:{name}": array for name, array in found.items()}
np.savez(outputs_file, **{name: np.asarray(array) for name, array in outputs.items()})
assert "placer" not in sys.modules
