"""Guards as scopes of JAX: their names, and what is read of a name again."""

import subprocess
import sys

import pytest

from placer.place.place import Place
from placer.place.scope import CLEAR, NO_DEVICE, joined, place_of, scopes


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ("", ()),
        ("layer_1/attention", ()),
        ("placer@cpu", ("/cpu",)),
        (
            "a/transpose(jvp(placer@node:worker:0,2-3@gpu:0-7))/b",
            ("/node:worker:0,2-3/gpu:0-7",),
        ),
        ("placer@node:ps/vmap(placer@cpu)/x", ("/node:ps", "/cpu")),
        ("placer@cpu/jvp(placer@cpu)/placer@gpu:*", ("/cpu", "/gpu:*")),
        ("placer@cpu/placer!clear/placer@gpu", (CLEAR, "/gpu")),
        ("placer@cpu/placer!device", ("/cpu", NO_DEVICE)),
    ],
)
def test_the_name_of_an_equation_tells_its_guards(stack, said):
    assert scopes(stack) == said


def test_what_guards_come_to():
    assert place_of(()) is None
    assert place_of(("/node:worker", "/gpu:1")) == Place.parse("/node:worker/gpu:1")
    assert place_of((CLEAR,)) is None
    said = joined(("/node:ps/cpu",), (NO_DEVICE,))
    assert place_of(said) == Place.parse("/node:ps")


def test_a_guard_imports_no_jax():
    code = (
        "import sys, placer\n"
        "with placer.place_guard('/cpu'), placer.device_guard('gpu'): pass\n"
        "print('jax' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert told.stdout == "False\n"
