"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from placer.command.option_groups import grouped_option
from placer.command.paths import (
    BuildPath,
    ExistingPath,
    SavedPath,
    SpecOrRunPath,
    SpecPath,
)
from placer.errors import PlacerError
from placer.plan.plan import DATA
from placer.runtime.control.options import MAX_WAIT, OPTIONS, Option

DEBUG = "--debug"

Function = TypeVar("Function", bound=Callable[..., Any])


def debug_option(command: Function) -> Function:
    """Add `--debug`. `main` also accepts it before the name of a command."""
    return click.option(
        DEBUG, is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)


_build_folder = BuildPath(file_okay=False)
build_argument = click.argument("build", type=_build_folder)
given_build_argument = click.argument(
    "build",
    type=BuildPath(file_okay=False, allow_dash=True),
)
_spec_file = SpecPath(dir_okay=False)
spec_argument = click.argument("spec", type=_spec_file)
python_argument = click.argument("spec", metavar="FILE.py:FUNCTION", type=_spec_file)
build_or_spec_argument = click.argument(
    "build", metavar="BUILD_OR_SPEC", type=SpecPath()
)
build_spec_or_run_argument = click.argument(
    "build", metavar="BUILD|SPEC|RUN", type=SpecOrRunPath()
)


class Pairs(click.ParamType[dict[str, Any]]):
    """An option value of the form `NAME=VALUE,…` with distinct names.

    Args:
        form: the form of one pair, for messages.
        example: one or more pairs, for messages.
        pattern: a regular expression that every value must match.
        read: converts the text of a value.
    """

    def __init__(
        self, form: str, example: str, pattern: str, read: Callable[[str], object]
    ) -> None:
        self.name = f"{form},…"
        self._expected = f"{form}, as in {example}"
        self._pattern, self._read = pattern, read

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for part in str(value).split(","):
            name, _, text = part.partition("=")
            if not name or not re.fullmatch(self._pattern, text):
                self.fail(f"'{part}' is not {self._expected}", param, ctx)
            if name in pairs:
                self.fail(f"'{name}' is repeated", param, ctx)
            pairs[name] = self._read(text)
        return pairs

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the text of an environment variable as one value."""
        return [rv]


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Seconds(click.ParamType[float]):
    """A timeout such as 30, 30s or 5m: above 0 and at most `MAX_WAIT` seconds."""

    name = "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number, unit = str(value), 1.0
        if number[-1:] in _SECONDS:
            number, unit = number[:-1], _SECONDS[number[-1]]
        try:
            seconds = float(number) * unit
        except ValueError:
            self.fail(f"'{value}' is not a number of seconds", param, ctx)
        if not 0 < seconds <= MAX_WAIT:
            self.fail(
                f"{value} is out of range: it must be above 0 and at most {MAX_WAIT:g}",
                param,
                ctx,
            )
        return seconds


class Whole(click.IntRange):
    """A whole number in a range."""

    name = "N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            most = "" if self.max is None else f" to {self.max}"
            self.fail(
                f"'{value}' is not a whole number from {self.min}{most}", param, ctx
            )


class Parsed(click.ParamType[str]):
    """A text that `parse` can read; `parse` raises PlacerError for an invalid text."""

    name = "TEXT"

    def __init__(self, parse: Callable[[str], object]) -> None:
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        try:
            self._parse(value)
        except PlacerError as error:
            hint = f"; {error.hint}" if error.hint else ""
            self.fail(f"{error.message}{hint}", param, ctx)
        return str(value)


def _one_list(
    context: click.Context, parameter: click.Parameter, given: Any
) -> tuple[Any, ...] | None:
    return tuple(each for part in given for each in part) or None


def _one_dict(
    context: click.Context, parameter: click.Parameter, given: Any
) -> dict[str, Any] | None:
    pairs: dict[str, Any] = {}
    for part in given:
        for name in part:
            if name in pairs:
                raise click.BadParameter(
                    f"'{name}' is repeated", ctx=context, param=parameter
                )
        pairs |= part
    return pairs or None


def listed(type_: click.ParamType[Any]) -> dict[str, Any]:
    """Return the settings of an option whose value is a list, such as a,b. A repeated option
    adds to the list. Its value is a tuple, or a dict for `Pairs`; None if it is not given."""
    join = _one_dict if isinstance(type_, Pairs) else _one_list
    return {"type": type_, "multiple": True, "callback": join}


nodes_option = grouped_option(
    "Model",
    "--nodes",
    **listed(Pairs("KIND=N", "worker=4,ps=2", "[0-9]{1,7}", int)),
    help="Override the number of nodes of each kind, such as worker=4,ps=2.",
)
set_option = grouped_option(
    "Model",
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the spec, such as train.epochs=5 or graph.h1.size=64. VALUE is YAML. Can "
    "be repeated; the last value of a key wins.",
)
endpoints_option = grouped_option(
    "Machines and connections",
    "--endpoints",
    **listed(Pairs("NODE=HOST:PORT", "worker:0=127.0.0.1:4000", ".+", str)),
    envvar="PLACER_ENDPOINTS",
    help="The addresses of nodes, such as worker:0=10.0.0.1:4000. Other nodes use their host in "
    "--hosts, or a port on this machine. Default: PLACER_ENDPOINTS.",
)
_hosts_file = ExistingPath(dir_okay=False)
hosts_option = grouped_option(
    "Machines and connections",
    "--hosts",
    metavar="FILE",
    type=_hosts_file,
    help="A file that lists the hosts of each kind of node, such as worker: [10.0.0.1, 10.0.0.2].",
)

ELSEWHERE = "placer.elsewhere"
"""Key in the `meta` of a click context, set if the nodes and their files are on other
machines.
"""


def _note_elsewhere(
    context: click.Context, parameter: click.Parameter, value: Any
) -> Any:
    context.meta[ELSEWHERE] = context.meta.get(ELSEWHERE, False) or value is not None
    return value


launch_hosts_option = grouped_option(
    "Machines and connections",
    "--hosts",
    metavar="FILE",
    type=_hosts_file,
    is_eager=True,
    callback=_note_elsewhere,
    help="Start the nodes over ssh on the machines in FILE, such as worker: [10.0.0.1, "
    "10.0.0.2]. Paths in other options refer to files on these machines.",
)


on_option = grouped_option(
    "Engines",
    "--on",
    metavar="ENGINE",
    is_eager=True,
    callback=_note_elsewhere,
    help="Run the nodes as a job of slurm, kubernetes, ray, or an engine of another package. "
    "Paths in other options refer to files on the machines of the job.",
)


class ReadPath(ExistingPath):
    """A file or folder that must exist on the machine that reads it."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        is_key = param is not None and param.name == "key"
        if ctx is not None and ctx.meta.get(ELSEWHERE) and not is_key:
            return Path(value)
        return super().convert(value, param, ctx)


class ReadSavedPath(ReadPath, SavedPath):
    """A file of parameters or a checkpoint on the machine that reads it."""


def _set_data(
    context: click.Context, parameter: click.Parameter, folder: Path | None
) -> Path | None:
    if folder is not None and not context.meta.get(ELSEWHERE):
        os.environ[DATA] = str(folder.resolve())
    return folder


data_option = grouped_option(
    "Machines and connections",
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    callback=_set_data,
    help="The data folder on the machine of each node, instead of the folder of the spec. "
    "Default: PLACER_DATA.",
)
single_process_option = grouped_option(
    "Model",
    "--single-process",
    is_flag=True,
    help="Ignore places and compile the whole model for one process, for example as a reference.",
)
code_option = grouped_option(
    "Model",
    "--no-code",
    "code",
    is_flag=True,
    callback=lambda context, parameter, no_code: not no_code,
    help="Do not run Python code of the spec. Fails if the spec needs such code.",
)


class NameList(click.ParamType[tuple[str, ...]]):
    """Names, separated by commas."""

    name = "NAME,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = tuple(name.strip() for name in str(value).split(","))
        if not all(names):
            self.fail(f"'{value}' is not a list of names, such as a,b", param, ctx)
        return names


outputs_option = grouped_option(
    "Model",
    "--outputs",
    **listed(NameList()),
    help="The values that predictions return, such as probability,logits. Replaces "
    "predict.outputs of the spec.",
)


def trained_model_options(command: Function) -> Function:
    """Add the options for a trained model: the build or spec, its parameters and its
    outputs.
    """
    params = grouped_option(
        "Model",
        "--params",
        required=True,
        metavar="PATH",
        type=SavedPath(),
        help="The parameters: a safetensors file, a checkpoint, or a folder of checkpoints "
        "(uses the newest intact one).",
    )
    outputs = grouped_option(
        "Model",
        "--outputs",
        **listed(NameList()),
        help="Compute only these outputs, such as probability,logits. Default: all outputs of "
        "the build. With a SPEC, any value can be an output.",
    )
    for option in (code_option, set_option, outputs, params, build_or_spec_argument):
        command = option(command)
    return command


def compile_options(command: Function) -> Function:
    """Add the options that are arguments of `placer.compile` with the same names."""
    for option in (
        code_option,
        outputs_option,
        single_process_option,
        nodes_option,
        set_option,
    ):
        command = option(command)
    return command


def run_options(command: Function) -> Function:
    """Add an option for each field of `Options`."""
    return some_run_options(*(option.name for option in OPTIONS))(command)


def some_run_options(*names: str) -> Callable[[Function], Function]:
    """Return a decorator that adds an option for each of these fields of `Options`."""

    def add(command: Function) -> Function:
        for option in reversed(OPTIONS):
            if option.name in names:
                command = _run_option(option)(command)
        return command

    return add


def _run_option(option: Option) -> Callable[[Function], Function]:
    is_flag = option.default is False
    return grouped_option(
        option.group,
        option.flag,
        is_flag=is_flag,
        type=None if is_flag else _type_of(option),
        default=option.default,
        show_default=not is_flag and option.default is not None,
        metavar=option.metavar,
        help=option.text,
    )


def _type_of(option: Option) -> click.ParamType[Any]:
    if option.file == "folder":
        return click.Path(file_okay=False, path_type=Path)
    if option.file:
        if option.file == "read":
            return ReadSavedPath() if option.name == "init_params" else ReadPath()
        return click.Path(dir_okay=False, path_type=Path)
    if option.parse is not None:
        return Parsed(option.parse)
    if option.choices:
        return click.Choice(option.choices)
    return Seconds() if option.seconds else Whole(option.low, option.high)
