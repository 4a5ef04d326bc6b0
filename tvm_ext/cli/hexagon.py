"""``tvm-ext hexagon``: kernels and models of Hexagon DSPs, run under an emulator."""

from __future__ import annotations

import click

from tvm_ext.cli.common import json_flag, print_json


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run models for Hexagon DSPs under an emulator, without a vendor's SDK."""


@command.command()
@json_flag
def doctor(as_json: bool) -> None:
    """Say which programs are there, and the one command that installs what is missing."""
    from tvm_ext.backends.hexagon.toolchain import complaint, installed
    from tvm_ext.errors import MissingPackageError

    found = installed()
    if as_json:
        rows = [
            {"name": item.tool.name, "path": item.path, "version": list(item.version), "fault": item.fault}
            for item in found
        ]
        print_json({"tools": rows, "complaint": complaint(found)})
    else:
        for item in found:
            state = item.fault or f"{item.path}, version {'.'.join(map(str, item.version))}"
            click.echo(f"  {item.tool.name:12} {item.tool.purpose}: {state}")
    if complaint(found):
        raise MissingPackageError(complaint(found))
    if not as_json:
        click.echo("Hexagon code can be compiled and run here")
