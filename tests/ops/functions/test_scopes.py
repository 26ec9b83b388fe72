"""Guards as named scopes of JAX: their names, and how they are parsed."""

import subprocess
import sys

import pytest

from placer.place.place import Place
from placer.place.scope import CLEAR, NO_DEVICE, nest_guards, parse_name_stack, place_of


@pytest.mark.parametrize(
    ("stack", "guards"),
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
def test_guards_are_parsed_from_a_name_stack(stack, guards):
    assert parse_name_stack(stack) == guards


def test_the_place_of_nested_guards():
    assert place_of(()) is None
    assert place_of(("/node:worker", "/gpu:1")) == Place.parse("/node:worker/gpu:1")
    assert place_of((CLEAR,)) is None
    guards = nest_guards(("/node:ps/cpu",), (NO_DEVICE,))
    assert place_of(guards) == Place.parse("/node:ps")


def test_a_guard_does_not_import_jax():
    code = (
        "import sys, placer\n"
        "with placer.place_guard('/cpu'), placer.device_guard('gpu'): pass\n"
        "print('jax' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"
