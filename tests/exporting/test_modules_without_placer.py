"""Guards of user modules have no effect in exports, whatever the module's names are."""

import pytest

from placer.compiler.serving.user_modules import copy_modules

IMPORT = "from placer import place_guard"
USE = """
def scaled(x):
    with place_guard("/node:worker/cpu"):
        return x * {factor}
"""
MODULES = {
    "plain": f"{IMPORT}\n{USE.format(factor=2)}",
    "the function of contextlib": (
        f"{IMPORT}\n\n\ndef nullcontext():\n    return 2\n\n{USE}".replace(
            "{factor}", "nullcontext()"
        )
    ),
    "a variable of that name": f"{IMPORT}\n\nnullcontext = 2\n{USE}".replace(
        "{factor}", "nullcontext"
    ),
    "an import of that name": (
        f"import operator as nullcontext\n\n{IMPORT}\n{USE}".replace(
            "{factor}", "nullcontext.add(1, 1)"
        )
    ),
    "its type": f"{IMPORT}\n\nAbstractContextManager = 2\n{USE}".replace(
        "{factor}", "AbstractContextManager"
    ),
    "a guard of the user's": (
        f"{IMPORT} as at\n\n\ndef place_guard():\n    return 2\n\n{USE}".replace(
            "with place_guard", "with at"
        ).replace("{factor}", "place_guard()")
    ),
    "an import with the name of a guard": (
        f"import operator as place_guard\n\n{IMPORT} as at\n{USE}".replace(
            "with place_guard", "with at"
        ).replace("{factor}", "place_guard.add(1, 1)")
    ),
    "both guards": (
        f"{IMPORT}, device_guard\n{USE}".replace(
            "    with place", '    with device_guard("gpu:0"), place'
        ).replace("{factor}", "2")
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_computes_the_same_without_placer(name):
    text = copy_modules(["m:scaled"], {"m": "m"}, lambda module: MODULES[name])["m"]
    assert "placer" not in text.replace("Outside of placer", "")
    exported = {}
    exec(compile(text, "m.py", "exec"), exported)
    assert exported["scaled"](3) == 6, text
