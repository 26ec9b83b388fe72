"""The style sheet of charts. Colors are variables of the page."""

from __future__ import annotations

from typing import Final

_CATEGORIES: Final = [
    "compute",
    "wait",
    "send",
    "receive",
    "update",
    "rows",
    "copy",
    "read",
    "record",
    "message",
    "other",
]
_PURPOSES: Final = {
    "forward": "forward",
    "backward": "backward",
    "forward-and-backward": "store",
    "update": "update",
    "other": "other",
}
_RUNS: Final = [
    "forward",
    "update",
    "read",
    "store",
    "lookup",
    "send",
    "combine",
    "backward",
]

CSS: Final = "\n".join(
    (
        ".chart{display:block;font-family:inherit}",
        ".chart .t{font-size:13px;fill:var(--ink)}",
        ".chart .t2{font-size:11px;fill:var(--ink-2)}",
        ".chart .in{fill:var(--ink);pointer-events:none}",
        ".chart .b{font-weight:600}",
        ".chart .grid{stroke:var(--line);stroke-width:1}",
        ".chart .piece{fill:color-mix(in srgb,var(--c) 30%,var(--paper));stroke:var(--c)}",
        ".chart .thin{fill:var(--c);stroke:none}",
        ".chart .cat-wait.piece{fill:var(--panel)}",
        ".chart .cat-step.piece{fill:var(--paper);stroke:var(--line)}",
        ".chart .hatch{stroke:var(--c);stroke-width:1.2;fill:none}",
        ".chart .mark{stroke:var(--ink);stroke-width:2}",
        ".chart .mean{stroke:var(--ink-2);stroke-dasharray:4 3}",
        ".chart .above{fill:var(--c-update);font-weight:600}",
        ".chart .on-chain{stroke:var(--accent);stroke-width:3;fill:none}",
        ".chart .chain-message{stroke:var(--accent);stroke-width:1.2;fill:none}",
        ".chart .raw{stroke:var(--c);stroke-width:1;opacity:.35;fill:none}",
        ".chart .smooth{stroke:var(--c);stroke-width:2;fill:none}",
        ".chart .evaluation{stroke:var(--c);stroke-width:1.2;fill:none}",
        ".chart .dot{stroke:var(--c);stroke-width:1.5;fill:var(--paper)}",
        ".chart .best{stroke:var(--ink);stroke-width:1.5;fill:none}",
        ".chart .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;"
        "stroke-linejoin:round}",
        ".chart .mem-parameters{--c:var(--c-store)}",
        ".chart .mem-slots{--c:var(--c-update)}",
        ".chart .mem-activations{--c:var(--c-forward)}",
        ".chart .mem-device{--c:var(--c-other)}",
        *(f".cat-{name}{{--c:var(--c-{name})}}" for name in _CATEGORIES),
        ".cat-step{--c:var(--c-other)}",
        *(
            f".chart .purpose-{name}{{--c:var(--c-{color})}}"
            for name, color in _PURPOSES.items()
        ),
        *(f".run-{i}{{--c:var(--c-{color})}}" for i, color in enumerate(_RUNS)),
        ".curves{display:flex;flex-wrap:wrap;gap:24px 28px}",
        ".scroll{overflow-x:auto}",
    )
)
