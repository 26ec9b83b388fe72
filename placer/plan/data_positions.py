"""Positions in the spec for errors about the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from placer.errors import DataError, RunError, Span
from placer.plan.plan import read_sources
from placer.plan.settings.data.sources import SourceError

Spans = Mapping[str, Span]
"""The positions of the keys of `data`, such as `train.source`, and of `inputs.NAME`."""


def read_spans(build: Path) -> dict[str, Span]:
    """Return the position in the spec of each key of `data`.

    The spans contain no source lines. Raises BuildError as `read_sources`.
    """
    sources = read_sources(build)
    spec = Path(sources.spec).name
    return {key: Span(spec, *position) for key, position in sources.data.items()}


@contextmanager
def located(which: str, spans: Spans) -> Iterator[None]:
    """Attach the position in the spec to errors about a source.

    Args:
        which: `train` or `eval`, the source inside the `with` block.
        spans: the positions of the keys of `data`.
    """
    try:
        yield
    except SourceError as error:
        span = _find_span(which, error.mistake.path, spans)
        raise DataError(error.message, span=span, hint=error.hint) from None
    except (DataError, RunError) as error:
        error.span = error.span or spans.get(f"{which}.source")
        raise


def _find_span(which: str, path: Sequence[str | int], spans: Spans) -> Span | None:
    """Return the position of a source's key, else of its nearest parent key."""
    keys = (which, *map(str, path))
    candidates = [".".join(keys)]
    if keys[1] == "columns":
        candidates += [f"inputs.{name}" for name in keys[2:3]]
    candidates += [".".join(keys[:n]) for n in range(len(keys) - 1, 2, -1)]
    candidates.append(f"{which}.source")
    return next((spans[each] for each in candidates if each in spans), None)
