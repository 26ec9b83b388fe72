"""The package `ops` of an exported model: copies of modules of placer."""

import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from placer import ops
from placer.compiler.serving.op_modules import op_modules
from placer.exporting.stablehlo import own_modules
from placer.ops import registry

INSTALLED = Path(ops.__file__).parent
ROOT = Path(__file__).parents[2]
EXPORTED = [
    kind
    for kind in registry.kinds()
    if kind not in ("call", "metric")
    and not registry.FAMILY_OF[kind].endswith(".inserted")
]
"""The kinds whose functions may be in an exported model."""
HELPERS = [
    "as_table", "in_evaluation", "outputs_of", "results_of", "row_keys_of", "with_leaves",
]  # fmt: skip


def test_copies_are_byte_by_byte_the_installed_files():
    files = op_modules([*EXPORTED, *HELPERS])
    copies = {path for path in files if not path.endswith("__init__.py")}
    for path in copies:
        assert files[path] == (INSTALLED / path).read_bytes(), path
    installed = {str(f.relative_to(INSTALLED)) for f in INSTALLED.rglob("*_jax.py")}
    others = {f"special/{name}_jax.py" for name in ("call", "inserted", "user_metric")}
    assert installed - copies == others
    assert not any(files[path] for path in {*files} - copies - {"__init__.py"})


def test_only_what_the_ops_need_is_copied():
    assert {path for path in op_modules(["softmax"]) if "_jax" in path} == {
        "elementwise/activation_jax.py",
        "common/gradient_jax.py",
    }


def test_a_contract_of_imports_lists_the_modules():
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    listed = contracts["importlinter:contract:ops-without-placer"]["source_modules"]
    paths = [path for path in op_modules([*EXPORTED, *HELPERS]) if "_jax" in path]
    names = [f"placer/ops/{path}".removesuffix(".py") for path in paths]
    assert sorted(listed.split()) == sorted(name.replace("/", ".") for name in names)


def test_the_package_has_the_functions_by_their_names(tmp_path):
    names = [*EXPORTED, *HELPERS]
    for path, content in op_modules(names).items():
        (tmp_path / "ops" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ops" / path).write_bytes(content)
    with own_modules(tmp_path):
        copied = import_module("ops")
        for name in names:
            module = getattr(copied, name).__module__
            assert not module.startswith("placer"), name
    assert not any(
        str(tmp_path) in str(getattr(module, "__file__", ""))
        for module in [*sys.modules.values()]
    )


IMAGE, KERNEL = jnp.zeros((1, 6, 6, 2)), jnp.zeros((3, 3, 2, 4))
SQUARE = jnp.ones((3, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.max_pool2d(IMAGE, pool_size=2, padding=2),
            "smaller than pool_size",
        ),
        (
            lambda: ops.avg_pool2d(IMAGE, pool_size=2, padding=2),
            "smaller than pool_size",
        ),
        (
            lambda: ops.max_pool2d(IMAGE, pool_size=[2, 2, 2]),
            "pool_size must be 2 ints",
        ),
        (
            lambda: ops.conv2d(IMAGE, KERNEL, strides=[1, 2, 3]),
            "strides must be 2 ints",
        ),
        (lambda: ops.conv2d(IMAGE, KERNEL, strides=0), "strides must be 2 ints of at"),
        (lambda: ops.conv2d(IMAGE, KERNEL, padding=-1), "padding must be 0 or more"),
        (lambda: ops.conv2d(IMAGE, KERNEL, padding="sme"), "'valid' or 'same'"),
        (lambda: ops.conv2d(IMAGE, jnp.zeros((7, 7, 2, 4))), "do not fit"),
        (lambda: ops.einsum(SQUARE, equation="ii->i"), "repeats a letter in 'ii'"),
        (lambda: ops.einsum(SQUARE, SQUARE[0], equation="ii,i->i"), "repeats a letter"),
        (lambda: ops.einsum(SQUARE, equation="ij"), "cannot parse the equation"),
        (
            lambda: ops.einsum(SQUARE, equation="ij,jk->ik"),
            "has 2 terms, but got 1 operands",
        ),
        (
            lambda: ops.einsum(SQUARE, equation="ij->ik"),
            "a letter that is in no operand",
        ),
        (
            lambda: ops.gru(*[jnp.zeros((1, 2, 3))] * 4, SQUARE, SQUARE),
            "needs 1 or 2 of x",
        ),
        (lambda: ops.multi_head_attention(*[SQUARE] * 4, heads=1), "got 4 arrays"),
    ],
)
def test_a_changed_call_in_an_exported_model_is_refused(call, message):
    """These functions are copied, and no declaration checks what calls them there."""
    with pytest.raises(ValueError, match=message):
        call()


def test_a_copied_op_has_the_gradient_of_plain_jax():
    def plain(x, w, b):
        return jnp.sum(jax.nn.relu(x @ w + b) ** 2)

    def copied(x, w, b):
        return jnp.sum(ops.fc(x, w, b, activation="relu") ** 2)

    key = jax.random.key(0)
    operands = [jax.random.normal(key, shape) for shape in ((4, 3), (3, 5), (5,))]
    for got, expected in zip(
        jax.grad(copied, (0, 1, 2))(*operands),
        jax.grad(plain, (0, 1, 2))(*operands),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
