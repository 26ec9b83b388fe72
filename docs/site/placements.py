"""Draws the placements of specs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec

from docs.site.cache import cached
from docs.site.paths import DOCS, ROOT, SPECS

_PROCESSES: Final = 2
_DARK: Final = "@media (prefers-color-scheme: dark)"
_DIRECTIVE = re.compile(r"^ *`{3,}\{placement\} (.+)$", re.MULTILINE)
_BLOCK = re.compile(
    r"^```(?:yaml|python)\n(# (\S+)\n.*?)^```$", re.MULTILINE | re.DOTALL
)


class Asked(NamedTuple):
    """A picture that a page asks for.

    Attributes:
        words: the words of the directive: a spec, and `--set KEY=VALUE`.
        written: the text of the spec, if the page writes it; else "".
    """

    words: tuple[str, ...]
    written: str = ""


class Placed(msgspec.Struct, frozen=True):
    """A placement.

    Attributes:
        svg: its picture.
        nodes: its nodes, such as "worker:0-1, ps:0-1".
        features: what the model uses, such as "asynchronous" and "sparse table".
    """

    svg: str
    nodes: str
    features: tuple[str, ...]


def asked(words: Iterable[str], page: str) -> Asked:
    """Return the picture that the words of a directive ask for.

    Args:
        page: the text of the page, which may write the spec.

    Raises:
        ValueError: the spec is neither a file of the checkout nor of the page.
    """
    spec, *options = words
    if (ROOT / spec.partition(":")[0]).is_file():
        return Asked((spec, *options))
    written = {name: text for text, name in _BLOCK.findall(page)}
    name = spec.partition(":")[0]
    if name not in written:
        raise ValueError(
            f"'{spec}' is no file, and no block of the page begins with it"
        )
    return Asked((spec, *options), written[name])


def asked_by_pages() -> list[Asked]:
    """Return the pictures that all pages ask for."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        found += [asked(line.split(), text) for line in _DIRECTIVE.findall(text)]
    return list(dict.fromkeys(found))


def draw_all(pictures: Iterable[Asked]) -> None:
    """Draw pictures, in two processes, so that the cache has them."""
    context = get_context("spawn")  # JAX has threads
    with ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:
        for _ in pool.map(placed, pictures):
            pass


def placed(picture: Asked) -> Placed:
    """Return a placement, from the cache if it is there."""
    content = "\0".join([*picture.words, picture.written])
    text = cached(
        "json", content, lambda: msgspec.json.encode(_place(picture)).decode()
    )
    return msgspec.json.decode(text, type=Placed)


def _place(picture: Asked) -> Placed:
    spec, *options = picture.words
    if not picture.written:
        return _place_file(ROOT / spec, options)
    with TemporaryDirectory() as folder:
        name = spec.partition(":")[0]
        (Path(folder) / name).write_text(picture.written, encoding="utf-8")
        (Path(folder) / "specs").symlink_to(SPECS)
        return _place_file(Path(folder) / spec, options)


def _place_file(path: Path, options: list[str]) -> Placed:
    """Compile a spec and draw it. JAX is imported here, not by every build of the site."""
    from placer.compiler.build_or_spec import load_build
    from placer.place.ids import format_nodes
    from placer.report.page.modes import mode_of
    from placer.report.page.picture import draw_standalone
    from placer.report.page.placement import drawn_graph, placement_of

    overrides = [word.removeprefix("--set=") for word in options if word != "--set"]
    build = load_build(path, overrides=overrides)
    graphs, plan = build.graphs, build.plan
    graph = drawn_graph(graphs)
    mode = mode_of(graph, plan)
    features = {
        "synchronous": plan.workers > 1 and not mode,
        "asynchronous": mode.startswith("Asynchronous"),
        "backup workers": "Backup" in mode,
        "rounds": "own copies and wait" in mode,
        "pipeline": plan.settings.train.microbatches > 1,
        "sparse table": bool(plan.sparse_tables),
        "heter nodes": any(node.name.startswith("heter") for node in plan.nodes),
        "servers": any(node.name.startswith("ps:") for node in plan.nodes),
    }
    return Placed(
        draw_standalone(placement_of(build, graph)),
        format_nodes(node.name for node in plan.nodes),
        tuple(name for name, is_used in features.items() if is_used),
    )


def themed(svg: str) -> dict[str, str]:
    """Return a picture for each theme of the site, which a reader can choose."""
    return {
        theme: svg.replace("color-scheme: light dark;", f"color-scheme: {theme};", 1)
        for theme in ("light", "dark")
    }
