"""The command `placer info`."""

from __future__ import annotations

import click

from placer.command.console import echo


@click.command("info", short_help="Show versions, devices and limits of this machine.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
def info_command(as_json: bool) -> None:
    """Show what placer can use on this machine.

    Lists versions, the devices that JAX sees, cores, memory and limits, the transports
    that work, caches with their sizes, and optional packages. Include the output in bug
    reports.
    """
    from placer.report.machine import inspect_machine

    machine = inspect_machine()
    if as_json:
        import msgspec

        echo(msgspec.json.format(msgspec.json.encode(machine)).decode())
        return
    from placer.report.machine_text import machine_lines

    for line in machine_lines(machine):
        echo(line)
