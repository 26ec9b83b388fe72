"""A metric whose function stores the rows that an evaluation gives it.

Tests copy this module beside a spec and add the metric `seen` to it. Each node then
writes what its evaluation has computed to a file per batch, in the folder SEEN_ROWS.
"""

import os
import time
import traceback
import uuid

import jax
import numpy as np


def seen(*values: jax.Array) -> jax.Array:
    """Return the mean square of each row of the first value.

    In a function for evaluations, whose name begins with `eval_`, all rows of all
    values are stored when it runs.
    """
    if any(frame.name.startswith("eval_") for frame in traceback.extract_stack()):
        jax.debug.callback(_store, *values)
    rows = values[0].reshape(len(values[0]), -1)
    return (rows**2).mean(1)


def _store(*values: jax.Array) -> None:
    arrays = [np.asarray(value) for value in values]
    name = f"{time.time_ns():020}-{uuid.uuid4().hex}"
    folder = os.environ["SEEN_ROWS"]
    np.savez(os.path.join(folder, f"{name}.npz"), *arrays)
