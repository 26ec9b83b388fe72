"""The arrays of scikit-learn's data sets are kept in the user's cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from placer.readers import sklearn_sets
from placer.system.caches import turns


def test_of_nodes_that_need_a_set_one_imports_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path))
    columns = ("data", "target")
    imports, waits, is_second_waiting = [], [], threading.Event()
    real_lock = turns._lock

    def lock(descriptor: int) -> bool:
        if is_locked := real_lock(descriptor):
            waits.append(threading.current_thread())
        elif imports:
            is_second_waiting.set()
        return is_locked

    def load(name: str, columns: Sequence[str]) -> sklearn_sets.Arrays:
        imports.append(name)
        if len(imports) == 1:
            second.start()
            assert is_second_waiting.wait(60)
        return {column: np.arange(3) for column in columns}

    monkeypatch.setattr(turns, "_lock", lock)
    monkeypatch.setattr(sklearn_sets, "_load_bundled", load)
    second = threading.Thread(target=sklearn_sets._load, args=("digits", columns))
    assert sklearn_sets._load("digits", columns).keys() == set(columns)
    second.join()
    assert (imports, len(waits)) == (["digits"], 2)
