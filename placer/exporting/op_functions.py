"""The source of the functions of ops, as an exported model contains it."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from placer.exporting.definitions import Copies, Key
from placer.ops.registry import FAMILY_OF
from placer.types import ITEM_BYTES

_OP_ERROR = '''\
class OpError(ValueError):
    """An op that does not fit its operands or attributes."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)'''

_DID_YOU_MEAN = '''\
def did_you_mean(name: str, valid: Iterable[str]) -> str:
    return f"one of: {', '.join(valid)}"'''

_TENSOR_TYPE = '''\
class TensorType:
    """A dtype and a shape."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype'''

_SMALLER: dict[Key, str] = {
    ("placer.errors", "OpError"): _OP_ERROR,
    ("placer.errors", "did_you_mean"): _DID_YOU_MEAN,
    ("placer.types", "ITEM_BYTES"): f"ITEM_BYTES = {ITEM_BYTES!r}",
    ("placer.types", "TensorType"): _TENSOR_TYPE,
}
"""What functions use of the compiler, with only what computing needs of it."""


def copy_op_functions(used: set[str], words: Collection[str]) -> Copies:
    """Return copies to which `add_op` adds; the arguments are those of `Copies`."""
    return Copies(_source_of, used, words, _SMALLER)


def copy_helpers(used: set[str]) -> Copies:
    """Return copies of functions that are no ops."""
    return Copies(_source_of, used)


def add_op(copies: Copies, kind: str) -> str:
    """Copy the function of an op kind; return its name."""
    return copies.add(f"{FAMILY_OF[kind]}_jax", kind)


@cache
def _source_of(module: str) -> str | None:
    if not module.startswith("placer."):
        return None
    found = find_spec(module)
    assert found is not None, module
    assert found.origin is not None, module
    return Path(found.origin).read_text(encoding="utf-8")
