"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import click

from placer.channel.transport import CHOICES

DEBUG = "--debug"

Function = TypeVar("Function", bound=Callable[..., Any])


def debug_option(command: Function) -> Function:
    """Add `--debug`. `main` looks for it itself, so that it also works before a
    command."""
    return click.option(
        DEBUG, is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)


class SpecPath(click.Path):
    """A spec file, or `FILE.py:FUNCTION`; the file must exist."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        file, colon, function = str(value).rpartition(":")
        if not (colon and file.endswith(".py")):
            return super().convert(value, param, ctx)
        path: Any = super().convert(file, param, ctx)
        return Path(f"{path}:{function}")


class BuildPath(click.Path):
    """A build folder; the error for a spec file says how to compile it."""

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
                f"'{value}' is a spec; compile it first: {compile_it}", param, ctx
            )
        return super().convert(value, param, ctx)


build_argument = click.argument(
    "build", type=BuildPath(exists=True, file_okay=False, path_type=Path)
)
spec_argument = click.argument(
    "spec", type=SpecPath(exists=True, dir_okay=False, path_type=Path)
)
python_argument = click.argument(
    "spec",
    metavar="FILE.py:FUNCTION",
    type=SpecPath(exists=True, dir_okay=False, path_type=Path),
)
build_or_spec_argument = click.argument(
    "build", metavar="BUILD_OR_SPEC", type=SpecPath(exists=True, path_type=Path)
)


class NodeCounts(click.ParamType[dict[str, int]]):
    """The number of nodes of each kind: `worker=4,ps=2`."""

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
                self.fail(f"'{kind}' is repeated", param, ctx)
            counts[kind] = int(number)
        return counts


class Endpoints(click.ParamType[dict[str, str]]):
    """The addresses on which nodes listen: `worker:0=127.0.0.1:4000,…`."""

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
                self.fail(f"'{node}' is repeated", param, ctx)
            endpoints[node] = address
        return endpoints


class Seconds(click.ParamType[float]):
    """A time to wait: a number above 0 and at most `MAX_WAIT`."""

    name = "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from placer.launcher.local import MAX_WAIT

        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"'{value}' is not a number of seconds", param, ctx)
        if not 0 < seconds <= MAX_WAIT:
            self.fail(
                f"{value} is out of range: it must be above 0 and at most {MAX_WAIT:g}",
                param,
                ctx,
            )
        return seconds


nodes_option = click.option(
    "--nodes",
    type=NodeCounts(),
    help="Override the number of nodes of a kind, such as worker=4,ps=2.",
)
single_process_option = click.option(
    "--single-process",
    is_flag=True,
    help="Compile the whole model for one process, as a reference for any placement.",
)


no_code_option = click.option(
    "--no-code",
    is_flag=True,
    help="Do not run Python code of the spec; it is an error if the spec needs it.",
)


def run_options(command: Function) -> Function:
    """Add the options that `launch` and `run` share."""
    written = click.Path(dir_okay=False, path_type=Path)
    read = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in reversed(
        (
            click.option(
                "--steps",
                type=click.IntRange(min=1),
                metavar="N",
                help="Run exactly N steps instead of the epochs of the spec.",
            ),
            click.option(
                "--history",
                type=written,
                metavar="FILE",
                help="Write the metrics of each step to FILE, as JSON lines.",
            ),
            click.option(
                "--save-params",
                type=written,
                metavar="FILE",
                help="Write all parameters to FILE at the end, as safetensors.",
            ),
            click.option(
                "--init-params",
                type=read,
                metavar="FILE",
                help="Start from the parameters in FILE, in safetensors format.",
            ),
            click.option(
                "--base-port",
                type=click.IntRange(1, 65535),
                metavar="PORT",
                help="The port of the first node; the others use the ports after it.",
            ),
            click.option(
                "--join-timeout",
                type=Seconds(),
                default=600.0,
                show_default=True,
                metavar="SECONDS",
                help="The longest that a node waits for the others to start.",
            ),
            click.option(
                "--deadline",
                type=Seconds(),
                default=600.0,
                show_default=True,
                metavar="SECONDS",
                help="The longest that a node waits for a message from a live peer.",
            ),
            click.option(
                "--carrier",
                type=click.Choice(CHOICES),
                default="auto",
                show_default=True,
                help="The transport between nodes: shared memory, or ZeroMQ over TCP.",
            ),
            click.option(
                "--emulate",
                is_flag=True,
                help="Use CPU devices in place of all accelerators.",
            ),
            click.option(
                "--debug-nans",
                is_flag=True,
                help="Find the first op that produces NaN, by running op by op (slow).",
            ),
        )
    ):
        command = option(command)
    return command
