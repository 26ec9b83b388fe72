"""Every block of the documentation runs, and its commands print what the page says.

In the normal tests, training ends after a few steps, and texts after it are not compared.
`pytest -m slow` runs all pages in full. Blocks with `no-run` do not run; the parser of the
command line reads the commands of placer in them.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.page_commands import cut_functions
from support.page_server import page_server
from support.pages import (
    NO_RUN,
    PAGES,
    ROOT,
    PageRun,
    blocks_of,
    is_as_written,
    with_placer,
)
from support.real_runs import process_environment
from sybil import Document, Example
from sybil.parsers.myst import CodeBlockParser

import placer
from placer.command.cli import commands

KINDS = ("python", "pycon", "sh", "sh fails", "text", "yaml", "diff")
HAS_BLOCK = re.compile(
    rf"^ *(?:```|<!-- invisible-code-block: )(?:{'|'.join(KINDS)})$", re.M
)
RUN = {name for name in PAGES if HAS_BLOCK.search((ROOT / name).read_text())}
INSTALLED = {"docs/start/tutorial.md", "docs/start/tutorial-flax.md"}
"""Pages that `.ci/installed.py` runs in full, in every run of the checks."""
LONG = {
    "docs/coming-from/jax.md",
    "docs/coming-from/paddlepaddle.md",
    "docs/coming-from/ray-train.md",
    "docs/coming-from/torchrun.md",
    "docs/how-to/comparing-runs.md",
    "docs/how-to/daily-clicks.md",
    "docs/how-to/extending.md",
    "docs/how-to/jax-models.md",
    "docs/how-to/reliability.md",
    "docs/how-to/serving.md",
    "docs/how-to/streams.md",
    "docs/learn/asynchronous.md",
    "docs/learn/microbatches.md",
    "docs/learn/sparse-tables.md",
}
"""Pages that take long even if they are cut short; the slow tests run them."""
MOST_NO_RUN = 42


def run_page(name: str, run: PageRun) -> None:
    """Run the blocks of a page in order."""

    end = 0

    def parser(kind: str) -> CodeBlockParser:
        def evaluate(example: Example) -> None:
            text = example.document.text
            is_left_out = NO_RUN.search(text[: example.start])
            follows = not text[end : example.start].strip()
            kind_or_none = "" if is_left_out else kind
            run.run(kind_or_none, str(example.parsed), follows=follows)

        return CodeBlockParser(kind, evaluate)

    for example in Document.parse(str(ROOT / name), *map(parser, KINDS)):
        try:
            example.evaluate()
            end = example.end
        except Exception as error:
            error.add_note(f"{name}:{example.line}")
            raise


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with page_server(
        tmp_path_factory.mktemp("server"), process_environment()
    ) as address:
        yield address


@pytest.fixture
def environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """The variables of a page's commands, in an empty folder that is the working folder."""
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    variables = with_placer(tmp_path, process_environment())
    del variables["PLACER_VERIFY"]  # of tests
    yield variables
    for name in set(sys.modules) - before:  # modules that the page has written
        file = getattr(sys.modules[name], "__file__", None) or ""
        if Path(file).is_relative_to(folder):
            del sys.modules[name]


@pytest.mark.parametrize("name", sorted(RUN - INSTALLED - LONG))
def test_the_blocks_of_a_page_run(name, environment, server, monkeypatch):
    for function, cut in cut_functions().items():
        monkeypatch.setattr(placer, function, cut)
    run_page(name, PageRun(Path.cwd(), environment, server))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RUN))
def test_a_page_prints_what_it_says(name, environment):
    run_page(name, PageRun(Path.cwd(), environment))


def test_few_blocks_do_not_run_and_their_commands_are_valid():
    left_out = [
        (name, block)
        for name in PAGES
        for block in blocks_of((ROOT / name).read_text(encoding="utf-8"))
        if block.reason
    ]
    assert len(left_out) <= MOST_NO_RUN
    for name, block in left_out:
        for words in placer_commands(block.text):
            try:
                read_command(words)
            except click.UsageError as error:
                pytest.fail(
                    f"{name}:{block.line}: {shlex.join(words)}: {error.message}"
                )


def placer_commands(text: str) -> list[list[str]]:
    """Return the words of each command of placer in a block, after `placer`."""
    lines = text.replace("\\\n", " ").splitlines()
    found = (re.search(r"(?:^|[$;&|(] *)placer +([^|;&>]*)", line) for line in lines)
    return [shlex.split(match[1], comments=True) for match in found if match]


def read_command(words: list[str]) -> None:
    """Read a command line by the parser of its command, without opening its files.

    Raises:
        click.UsageError: the command or an option does not exist, or a value is wrong.
    """
    context = click.Context(commands, info_name="placer")
    command, rest = commands, words
    while isinstance(command, click.Group):
        _, command, rest = command.resolve_command(context, rest)
        context = click.Context(command, parent=context)
    values, extra, _ = command.make_parser(context).parse_args(list(rest))
    if extra:
        raise click.UsageError(f"unexpected {extra}")
    for parameter in command.params:
        value = values.get(parameter.name)
        is_given = isinstance(value, str | list | tuple | bool)  # else click's marker
        if parameter.required and not is_given:
            raise click.MissingParameter(ctx=context, param=parameter)
        if is_given and not isinstance(parameter.type, click.Path):
            parameter.type_cast_value(context, value)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("launch build --hosts hosts.yaml --steps 3", None),
        ("launch --host hosts.yaml", "--host"),
        ("launch", "BUILD"),
        ("lunch build", "lunch"),
        ("key new run.key", None),
    ],
)
def test_the_parser_reads_commands_that_do_not_run(words, problem):
    if problem is None:
        read_command(words.split())
    else:
        with pytest.raises(click.UsageError) as raised:
            read_command(words.split())
        assert problem in raised.value.format_message()


@pytest.mark.parametrize(
    ("printed", "page", "same"),
    [
        ("accuracy 0.8854", "accuracy 0.8855", True),
        ("accuracy 0.878", "accuracy 0.89", False),
        ("accuracy 0.88", "accuracy 0.90", False),
        ("[0.99874]", "[0.998…]", True),
        ("[0.99674]", "[0.998…]", False),
        ("4.7 MB sent", "4.9 MB sent", True),
        ("4.7 sent", "4.9 sent", False),
    ],
)
def test_numbers_of_a_page_may_differ_by_a_unit_of_the_last_digit(printed, page, same):
    assert is_as_written(printed, page) is same
