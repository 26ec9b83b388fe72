"""How the command line begins and ends: the commands in order, errors, statuses."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from io import StringIO
from typing import NoReturn

import click

import placer
from placer.command.check import check_command, schema_command
from placer.command.compile import compile_command
from placer.command.console import say
from placer.command.explain import explain_command
from placer.command.launch import launch_command
from placer.command.options import DEBUG, debug_option
from placer.command.run import run_command
from placer.command.show import show_command
from placer.command.to_yaml import to_yaml_command
from placer.errors import PlacerError

INTERRUPTED = 130


class InOrder(click.Group):
    """Lists its commands in the order in which a newcomer meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Each command says more with --help.",
)
@click.version_option(placer.__version__, prog_name="placer")
@debug_option
def commands() -> None:
    """Write one model, say where each op lives, get one JAX program per node.

    \b
      placer compile specs/digits.yaml --out build/    one program per node
      placer launch build/                             train, on this machine
      placer show build/                               what runs where
      placer explain build/ h1.w                       and why
    """


for command in (
    compile_command,
    launch_command,
    show_command,
    explain_command,
    check_command,
    run_command,
    schema_command,
    to_yaml_command,
):
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line (by default this process's) and exit with its status.

    0 for success, 2 for a user's mistake, 1 for a failure at run time, 130 on Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it was closed: nobody wants to read it
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    sys.exit(_status(given, debug=DEBUG in given))


def _status(arguments: list[str], *, debug: bool) -> int:
    try:
        # With standalone_mode off it returns the status of --help and --version.
        status = commands.main(arguments, prog_name="placer", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        say(shown.getvalue(), err=True, nl=False)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        # click makes an Abort of what a launch raises, which may say what it has saved.
        if outcome := str(interrupt.__cause__ or interrupt):
            say(outcome, err=True)
        say("interrupted", err=True)
        return INTERRUPTED
    except PlacerError as error:
        if debug:
            say(traceback.format_exc(), err=True, nl=False)
        say(str(error), err=True)
        return error.exit_status
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _reader_left()
        return _unexpected(error, debug=debug)
    except Exception as error:
        return _unexpected(error, debug=debug)


def _reader_left() -> int:
    """Who read our output has closed it, as `head` does: nothing more to say."""
    # Python flushes stdout once more at exit, which must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _unexpected(error: Exception, *, debug: bool) -> int:
    if debug:
        say(traceback.format_exc(), err=True, nl=False)
    else:
        say(f"{type(error).__name__}: {error}", err=True)
        say(f"  hint: {DEBUG} shows where it came from", err=True)
    return 1
