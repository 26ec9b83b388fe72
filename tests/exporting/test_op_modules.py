"""The package `ops` of an exported model: copies of modules of placer."""

import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

from placer import ops
from placer.exporting.op_modules import op_modules
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
HELPERS = ["as_table", "outputs_of", "row_keys_of", "with_leaves"]


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
