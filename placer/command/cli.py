"""The entry point of the command line: commands, error reports and exit statuses."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from typing import Any, NoReturn

import click

import placer
from placer.command.check import check_command, schema_command
from placer.command.checkpoints import checkpoints_command
from placer.command.compile import compile_command
from placer.command.console import echo
from placer.command.explain import explain_command
from placer.command.export import export_command
from placer.command.info import info_command
from placer.command.init import init_command
from placer.command.key import key_command
from placer.command.launch import launch_command
from placer.command.opt import opt_command
from placer.command.options import DEBUG, debug_option
from placer.command.predict import predict_command
from placer.command.report import report_command
from placer.command.run import run_command
from placer.command.runs import runs_command
from placer.command.show import show_command
from placer.command.to_yaml import to_yaml_command
from placer.command.train import train_command
from placer.command.unknown_option import explain_unknown_option
from placer.errors import CheckpointWarning, PlacerError, RunWarning, SpecWarning
from placer.runtime.signals.signals import end_shown
from placer.system.memory.collection import pause_collection

INTERRUPTED = 130


class OrderedGroup(click.Group):
    """A click group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=OrderedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Run `placer COMMAND --help` for the options of a command.",
)
@click.version_option(placer.__version__, prog_name="placer")
@debug_option
def commands() -> None:
    """Compile one model into one JAX program per node, and run the programs.

    \b
      placer train specs/digits.yaml                            train on this machine
      placer compile specs/digits.yaml --out build/             write one program per node
      placer launch build/                                      run this build
      placer predict build/ --params PATH --in ROWS --out FILE  write predictions for rows
      placer export build/ --params PATH --out DIR              write a model that needs no placer
      placer report build/                                      write a page with pictures
      placer show build/                                        show which op runs where
      placer explain build/ h1.w                                explain why h1.w is where it is
    """


for command in (
    init_command,
    train_command,
    compile_command,
    launch_command,
    predict_command,
    export_command,
    runs_command,
    checkpoints_command,
    report_command,
    show_command,
    explain_command,
    check_command,
    run_command,
    schema_command,
    to_yaml_command,
    opt_command,
    key_command,
    info_command,
):
    commands.add_command(debug_option(command))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with its status.

    The status is 0 for success, 2 for a user error, 1 for a failure at run time and 130
    after Ctrl-C.

    Args:
        arguments: the words of the command line. Default: those of this process.
    """
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    if arguments is None:
        pause_collection()
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in ("stdout", "stderr"):
        if (
            getattr(sys, stream) is None
        ):  # The process that started this one closed the stream.
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    with end_shown():
        sys.exit(_run_command(words, debug=DEBUG in words))


def _show_warning(
    show: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Print a warning of placer without its position in the source."""
    if issubclass(category, (CheckpointWarning, RunWarning, SpecWarning)):
        echo(f"warning: {message}", err=True)
    else:
        show(message, category, *args, **kwargs)


def _run_command(arguments: list[str], *, debug: bool) -> int:
    try:
        # With standalone_mode=False, main returns the status of --help and --version.
        status = commands.main(arguments, prog_name="placer", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = explain_unknown_option(error, arguments)
        text = StringIO()
        error.show(text)
        echo(text.getvalue(), err=True, nl=False)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        # click turns the KeyboardInterrupt of a launch into an Abort. The text of the
        # KeyboardInterrupt says whether the parameters were saved.
        if outcome := str(interrupt.__cause__ or interrupt):
            echo(outcome, err=True)
        echo("interrupted", err=True)
        return INTERRUPTED
    except PlacerError as error:
        if debug:
            echo(traceback.format_exc(), err=True, nl=False)
        echo(str(error), err=True)
        return error.exit_status
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            # The reader of stdout has closed it, as `head` does. Python flushes stdout
            # again at exit, and this flush must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif debug:
            echo(traceback.format_exc(), err=True, nl=False)
        else:
            echo(f"{type(error).__name__}: {error}", err=True)
            echo(f"  hint: {DEBUG} shows the traceback", err=True)
        return 1
