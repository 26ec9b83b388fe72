"""Lines of YAML and of comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from placer.front.yaml_text import WIDTH, one_line


def comment_text(text: str) -> str:
    """Return a text for one line of a comment, without characters that would end it."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def comment(
    text: str, first: str = "# ", then: str | None = None, indent: int = 0
) -> Iterable[str]:
    """Return comment lines; `indent` blanks are added to them later."""
    return wrap(
        comment_text(text),
        WIDTH - indent,
        initial_indent=first,
        subsequent_indent=first if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def flow_list(key: str, items: Iterable[object], indent: int) -> Iterator[str]:
    """Yield a key with a list, in as many lines as it needs."""
    texts = [one_line(item, flow=True) for item in items]
    pad = " " * indent
    joined = f"{pad}{one_line(key)}: [{', '.join(texts)}]"
    if len(joined) <= WIDTH:
        yield joined
        return
    yield f"{pad}{one_line(key)}:"
    line = f"{pad}  ["
    for position, text in enumerate(texts):
        text += "]" if position == len(texts) - 1 else ","
        if len(line) + len(text) + 1 > WIDTH and not line.endswith("["):
            yield line.rstrip()
            line = f"{pad}   "
        line += text + " "
    yield line.rstrip()
