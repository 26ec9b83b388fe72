"""The command `placer report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from placer.command.console import echo
from placer.command.options import code_option, set_option
from placer.command.paths import ExistingPath, SpecOrRunPath

if TYPE_CHECKING:
    from placer.report.page.facts import Page

_PAGE: Final = Path("report.html")
_PICTURE: Final = Path("placement.svg")
_FORMATS: Final = {".html", ".svg", ".png", ".jpg", ".jpeg", ".pdf", ".json", ".md"}
_SHOWN_PATHS: Final = 16
"""The number of paths in the command that a page shows."""


@click.command(
    "report", short_help="Write a page that shows a placement, and what runs did."
)
@click.argument("paths", metavar="[BUILD|SPEC|RUN]...", nargs=-1, type=SpecOrRunPath())
@click.option(
    "--trace",
    type=ExistingPath(dir_okay=False),
    metavar="FILE",
    help="Show why a step takes as long as it does, from the trace of a run (--trace of"
    " `placer train` and `placer launch`). Default: the trace that the run wrote, if any.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"The file to write. Default: {_PAGE}, or {_PICTURE} with --svg.",
)
@click.option("--open", "opens", is_flag=True, help="Open the file in a browser.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the facts of the page as one JSON object, and write no file.",
)
@click.option(
    "--svg", "as_svg", is_flag=True, help="Write only the picture of the placement."
)
@set_option
@code_option
def report_command(
    paths: tuple[Path, ...],
    trace: Path | None,
    out: Path | None,
    opens: bool,
    as_json: bool,
    as_svg: bool,
    overrides: tuple[str, ...],
    code: bool,
) -> None:
    """Write a page about a build, a spec, or one or several runs.

    The page is one HTML file that opens without a network. It shows the placement as a
    picture: a column for each device, a box for each part of a program, and an arrow for
    each message. It also shows the memory of each process, the parameters on each server,
    the schedule of a pipeline, and the curves and metrics of runs. With a trace, it shows
    why a step takes as long as it does.

    Without arguments, the page is about the newest run in the folder `runs`. A page about
    several runs compares them.
    """
    _check_options(out, opens=opens, as_json=as_json, as_svg=as_svg)
    from placer.report.page.collect import collect
    from placer.report.page.subject import find_subject

    subject = find_subject(paths, trace=trace, overrides=overrides, code=code)
    for note in subject.notes:
        echo(note, err=as_json)
    page, notes = collect(subject, _command(paths, trace, overrides))
    for note in notes:
        echo(note, err=as_json)
    if as_json:
        import msgspec

        echo(msgspec.json.format(msgspec.json.encode(page)).decode())
        return
    file = out or (_PICTURE if as_svg else _PAGE)
    _check_suffix(file, ".svg" if as_svg else ".html")
    if as_svg:
        _write_picture(page, file)
    else:
        from placer.report.page.write import page_html, write_text

        write_text(page_html(page), file)
    echo(str(file))
    echo(_summary(page))
    if len(page.runs) > 1 and page.best:
        echo(page.best)
    if opens:
        import webbrowser

        webbrowser.open(file.resolve().as_uri())


def _command(
    paths: tuple[Path, ...], trace: Path | None, overrides: tuple[str, ...]
) -> str:
    """Return the command line that the page shows, with the first of many paths."""
    words = ["placer", "report", *map(str, paths[:_SHOWN_PATHS])]
    words += ["--trace", str(trace)] if trace else []
    words += [word for each in overrides for word in ("--set", each)]
    left_out = len(paths) - _SHOWN_PATHS
    more = f" … and {left_out:,} more runs" if left_out > 0 else ""
    return f"{shlex.join(words)}{more}"


def _check_options(
    out: Path | None, *, opens: bool, as_json: bool, as_svg: bool
) -> None:
    """Raise UsageError for options that cannot have an effect."""
    without_file = {"--out": out is not None, "--open": opens, "--svg": as_svg}
    for option, is_given in without_file.items():
        if as_json and is_given:
            raise click.UsageError(
                f"{option} has no effect with --json, which writes no file"
            )


def _check_suffix(file: Path, suffix: str) -> None:
    """Raise UsageError if the name of a file says that it has another format."""
    if file.suffix.lower() in _FORMATS - {suffix}:
        written = "an SVG picture" if suffix == ".svg" else "an HTML page"
        raise click.UsageError(
            f"'{file}' would contain {written}; name it {file.with_suffix(suffix)}"
        )


def _write_picture(page: Page, file: Path) -> None:
    from placer.errors import PlacerError
    from placer.report.page.picture import draw_standalone
    from placer.report.page.write import write_text

    if page.placement is None:
        raise PlacerError(
            "the builds of the runs are missing, so there is no placement to draw",
            hint="name a build or a spec",
        )
    if page.source:
        raise PlacerError(
            "the builds of the runs differ, so --svg has several placements",
            hint="name one of the runs",
        )
    write_text(draw_standalone(page.placement), file)


def _summary(page: Page) -> str:
    """Return the totals of a page in one line."""
    parts = [
        total.value if total.label == "nodes" else f"{total.value} {total.label}"
        for total in page.totals
    ]
    if page.step_time is not None:
        from placer.report.numbers import format_ms

        parts.append(f"{format_ms(page.step_time.seconds)} a step")
    if len(page.runs) > 1:
        parts.insert(0, f"{len(page.runs)} runs")
    return f"{page.title}: {', '.join(parts)}" if parts else page.title
