"""Options and arguments that several commands take."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import click

DEBUG = "--debug"

Function = TypeVar("Function", bound=Callable[..., Any])


def debug_option(command: Function) -> Function:
    """`--debug`, which `main` looks for itself: it holds outside of commands too."""
    return click.option(
        DEBUG, is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)


class Spec(click.Path):
    """A spec's file, or `FILE.py:FUNCTION`, of which the file must be there."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        file, colon, function = str(value).rpartition(":")
        if not (colon and file.endswith(".py")):
            return super().convert(value, param, ctx)
        found: Any = super().convert(file, param, ctx)
        return Path(f"{found}:{function}")


class Build(click.Path):
    """A build folder; a spec in its place is told how to make one."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        file, colon, _ = str(value).rpartition(":")
        if os.path.isfile(value) or (colon and file.endswith(".py")):
            compile_it = f"placer compile {quote(str(value))} --out build/"
            self.fail(
                f"'{value}' is a spec, compile it first: {compile_it}", param, ctx
            )
        return super().convert(value, param, ctx)


build_argument = click.argument(
    "build", type=Build(exists=True, file_okay=False, path_type=Path)
)
spec_argument = click.argument(
    "spec", type=Spec(exists=True, dir_okay=False, path_type=Path)
)
python_argument = click.argument(
    "spec",
    metavar="FILE.py:FUNCTION",
    type=Spec(exists=True, dir_okay=False, path_type=Path),
)
build_or_spec_argument = click.argument(
    "build", metavar="BUILD_OR_SPEC", type=Spec(exists=True, path_type=Path)
)


class NodeCounts(click.ParamType[dict[str, int]]):
    """`worker=4,ps=2`: how many nodes there are of each kind."""

    name = "KIND=N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        counts: dict[str, int] = {}
        for part in str(value).split(","):
            kind, _, number = part.partition("=")
            if not kind or not re.fullmatch(r"[0-9]{1,7}", number):
                self.fail(f"'{part}' is not KIND=N, as in worker=4,ps=2", param, ctx)
            if kind in counts:
                self.fail(f"'{kind}' is given twice", param, ctx)
            counts[kind] = int(number)
        return counts


class Endpoints(click.ParamType[dict[str, str]]):
    """`worker:0=127.0.0.1:4000,…`: where nodes listen."""

    name = "NODE=HOST:PORT,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        endpoints: dict[str, str] = {}
        for part in str(value).split(","):
            node, equals, address = part.partition("=")
            if not node or not equals or not address:
                form = "NODE=HOST:PORT, as in worker:0=127.0.0.1:4000"
                self.fail(f"'{part}' is not {form}", param, ctx)
            if node in endpoints:
                self.fail(f"'{node}' is given twice", param, ctx)
            endpoints[node] = address
        return endpoints


class Seconds(click.ParamType[float]):
    """How long to wait: a number above 0 that a clock can count."""

    name = "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from placer.launcher.local import LONGEST

        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"'{value}' is not a number of seconds", param, ctx)
        if not 0 < seconds <= LONGEST:
            self.fail(f"{value} is not above 0 and at most {LONGEST:g}", param, ctx)
        return seconds


nodes_option = click.option(
    "--nodes",
    type=NodeCounts(),
    help="How many nodes of a kind, instead of what the spec says: worker=4,ps=2.",
)
single_process_option = click.option(
    "--single-process",
    is_flag=True,
    help="One process runs the whole model: the reference for every placement.",
)


no_code_option = click.option(
    "--no-code",
    is_flag=True,
    help="Run no Python that comes with the spec; what needs that is an error.",
)


def run_options(command: Function) -> Function:
    """What `launch` and `run` share."""
    written = click.Path(dir_okay=False, path_type=Path)
    read = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in reversed(
        (
            click.option(
                "--steps",
                type=click.IntRange(min=1),
                metavar="N",
                help="Run exactly N steps, whatever the spec's epochs say.",
            ),
            click.option(
                "--history",
                type=written,
                metavar="FILE",
                help="Write a JSON line per step.",
            ),
            click.option(
                "--save-params",
                type=written,
                metavar="FILE",
                help="Write the whole parameters at the end, as safetensors.",
            ),
            click.option(
                "--init-params",
                type=read,
                metavar="FILE",
                help="Begin with these parameters, from safetensors.",
            ),
            click.option(
                "--base-port",
                type=click.IntRange(1, 65535),
                metavar="PORT",
                help="The nodes listen on this port and those after it.",
            ),
            click.option(
                "--join-timeout",
                type=Seconds(),
                default=600.0,
                show_default=True,
                metavar="SECONDS",
                help="How long nodes wait for each other at the start.",
            ),
            click.option(
                "--deadline",
                type=Seconds(),
                default=600.0,
                show_default=True,
                metavar="SECONDS",
                help="How long a node waits for a message of one that is alive.",
            ),
            click.option(
                "--carrier",
                type=click.Choice(["auto", "shared", "zeromq"]),
                default="auto",
                show_default=True,
                help="What nodes send goes through: memory of this machine, or sockets.",
            ),
            click.option(
                "--emulate",
                is_flag=True,
                help="Every device that is no CPU is a CPU device of its own.",
            ),
            click.option(
                "--debug-nans",
                is_flag=True,
                help="Run op by op, slowly, and name the first op that gives NaN.",
            ),
        )
    ):
        command = option(command)
    return command
