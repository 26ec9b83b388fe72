"""Chooses Python names for the values of a graph: valid, unique and easy to recognize."""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence

from placer.compiler.graph.structural_ops import MOVING_KINDS
from placer.plan.hooks import HOOKS

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SPECIAL = re.compile(r"__\w*__\Z")
_KEYWORDS = frozenset({*keyword.kwlist, *keyword.softkwlist})
PYTHON_WORDS = _KEYWORDS | frozenset(dir(builtins))

STATIC_ARGUMENTS = ("count", "rows", "share")
"""The static arguments of jitted functions: the rows of the global batch, the rows of a
microbatch, and the node's fraction of these rows."""
_IMPORTED = ("functools", "jax", "namedtuple", "NamedTuple", "ops", "runtime")
_VARIABLES = ("node", "message", "task")
RESERVED = PYTHON_WORDS.union(HOOKS, _IMPORTED, _VARIABLES, STATIC_ARGUMENTS)
"""The names with one meaning in all node programs; values have other names."""
RESERVED_FOR_FIELDS = _KEYWORDS.union(n for n in dir(tuple) if not n.startswith("_"))
"""The names that a field of a namedtuple cannot have: keywords and methods of tuples."""


MAX_PART = 64
"""The maximum length of a part of a value's name in a program. Only names of parameters have
longer parts: libraries choose the names on the path of a traced model's parameter."""
_KEPT = 24
SHORTENED = "NAME_DIGEST_NAME"
"""The convention of a shortened name."""


def has_long_part(value: str) -> bool:
    """Return True if programs shorten the name of a value."""
    return any(len(part) > MAX_PART for part in value.split("."))


def shorten_parts(value: str) -> str:
    """Return the name of a value, with a digest in place of the middle of long parts.

    >>> shorten_parts("flow." + "bijection_" * 9 + "kernel")
    'flow.bijection_bijection_bije_78ea3cbc_jection_bijection_kernel'
    """
    return ".".join(map(_shorten, value.split(".")))


def _shorten(part: str) -> str:
    if len(part) <= MAX_PART:
        return part
    digest = hashlib.sha256(part.encode()).hexdigest()[:8]
    return f"{part[:_KEPT].rstrip('_')}_{digest}_{part[-_KEPT:].lstrip('_')}"


class Names:
    """The names of one namespace, such as a program.

    The value `h1.w` is called `h1_w`, its gradient `d_h1_w`, a residual `h1_res`.
    A name is never special to Python, as `__class__` is.

    Args:
        modules: the modules of the spec that the program imports. Each keeps its name,
            with a number after it if the name is used.
        reserved: the names with another meaning in the program.

    Attributes:
        modules: the name of each imported module.
        conventions: the conventional names in use, such as `p` and `g`; `d_NAME` stands
            for the names of gradients.
    """

    def __init__(
        self, modules: Iterable[str] = (), reserved: Iterable[str] = RESERVED
    ) -> None:
        self._used = {*reserved}
        self._used_in_hooks: set[str] = set()
        self._names: dict[str, str] = {}
        self.conventions: set[str] = set()
        self.modules = {module: self.new_name(module) for module in modules}

    def name_of(self, value: str) -> str:
        """Return the name of a value; the first call chooses it."""
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = self.new_name(self._proposal(value))
        return name

    def new_name(self, proposal: str) -> str:
        """Return the proposal, or if it is used, the first unused name of `proposal_2`,
        `proposal_3`, and so on."""
        assert _LEGAL.match(proposal), proposal
        name, number = proposal, 2
        while _SPECIAL.match(name) or self._is_used(name):
            name, number = f"{proposal}_{number}", number + 1
        self._used.add(name)
        return name

    def _is_used(self, name: str) -> bool:
        return name in self._used or name in self._used_in_hooks

    def _proposal(self, value: str) -> str:
        first, *others = shorten_parts(value).split(".")
        if has_long_part(value):
            self.conventions.add(SHORTENED)
        if "grad" in others:
            self.conventions.add("d_NAME")
            if any(part.startswith("from_") for part in others):
                self.conventions.add("d_NAME_from_OP")
        if others and others[-1] in ("res", "range"):
            self.conventions.add(f"{'d_' * ('grad' in others)}NAME_{others[-1]}")
        name = _readable(first, others)
        return f"{name}_" if name in PYTHON_WORDS and name != "_" else name


class HookNames(Names):
    """The names of one hook and of its functions.

    They differ from the functions and classes of the program, but not from the variables
    of other hooks.

    Args:
        program: the names of the program.
        shortened: other names for some values, in the form of values: `x.grad` for
            `x.grad.clipped`.
    """

    def __init__(self, program: Names, shortened: Mapping[str, str]) -> None:
        super().__init__(reserved=())
        self._program = program
        self._shortened = shortened
        self.conventions, self.modules = program.conventions, program.modules

    def new_name(self, proposal: str) -> str:
        name = super().new_name(proposal)
        self._program._used_in_hooks.add(name)
        return name

    def _is_used(self, name: str) -> bool:
        return name in self._used or name in self._program._used

    def _proposal(self, value: str) -> str:
        return super()._proposal(self._shortened.get(value, value))


def is_argument_name(text: str) -> bool:
    """Whether a keyword argument of a call can have this name."""
    return text.isidentifier() and not keyword.iskeyword(text) and text != "__debug__"


def _readable(first: str, others: Sequence[str]) -> str:
    """Return an identifier for a value, given the parts of its name between dots."""
    # A received or converted value is named like the original value.
    parts = [first, *[part for part in others if part not in MOVING_KINDS]]
    if "grad" in others:
        at = parts.index("grad", 1)
        parts = ["d", *parts[:at], *parts[at + 1 :]]
    return "_".join(parts)
