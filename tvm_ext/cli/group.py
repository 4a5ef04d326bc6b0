"""The click group ``tvm-ext``: finds a sub-command and imports it only when it is used."""

from __future__ import annotations

import difflib
import importlib

import click

# Command -> what `tvm-ext --help` says of it. Its module, tvm_ext.cli.<command>, is imported only to run it.
COMMANDS = {
    "bench": "Compare latency: TVM, tvm_ext, onnxruntime, OpenVINO, torch.",
    "calibrate": "Measure this machine for the compiler's cost models.",
    "compile": "Compile a model file to an artifact folder.",
    "embed": "Show how a target's instructions fit the operators of a model.",
    "generate": "Generate tokens with a compiled decoder.",
    "hexagon": "Run models for Hexagon DSPs under an emulator.",
    "inspect": "Write one HTML page that shows what a compilation does.",
    "memory": "Show how little memory a model can run in, planned and measured.",
    "profile": "Time kernels, compare them with the machine's limit.",
    "run": "Run a compiled artifact.",
    "serve": "Let other machines measure candidates on this one.",
    "tune": "Measure schedules of a model's kernels, keep the fastest.",
    "vta": "Disassemble, replay and time VTA instruction streams.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that ``--help`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command."""
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            ctx.fail(f"No such command {cmd_name!r}" + (f", did you mean {near[0]!r}?" if near else ""))
        return importlib.import_module(f"tvm_ext.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from tvm_ext import __version__

        click.echo(f"tvm-ext {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compile, run, measure and look into neural networks with Apache TVM."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
