"""Entry point of ``tvm-ext``: finds the sub-command, and turns every error into one line on stderr and an exit code.

========= =================================================================
exit code meaning
========= =================================================================
0         done
1         an error in tvm-ext itself (please report it)
2         the command line is wrong: unknown command, option or value
3         the model file is missing, damaged, or in no known format
4         the model holds operators that cannot be imported
5         an input has the wrong name, shape or dtype, or is missing
6         the target is unknown or cannot be used here
7         the result cannot be written
8         a result differs from its reference by more than the tolerance
9         TVM could not compile or run the model
10        an optional package is needed and not installed
130       interrupted with Ctrl-C
========= =================================================================
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import click

from tvm_ext.errors import TvmExtError

# Command -> what `tvm-ext --help` says of it. Its module, tvm_ext.cli.<command>, is imported only to run it.
COMMANDS = {
    "bench": "Compare latency: stock TVM, tvm_ext, onnxruntime, OpenVINO, torch.",
    "compile": "Compile a model file to an artifact folder.",
    "inspect": "Write one HTML page that shows what a compilation does.",
    "run": "Run a compiled artifact.",
}
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that ``--help`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command."""
        if cmd_name not in COMMANDS:
            return None
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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Compile, run, measure and look into neural networks with Apache TVM."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code that says how it went."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code (see the table above)."""
    try:
        cli.main(args=arguments, prog_name="tvm-ext", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: not an error; stop Python from writing there again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except TvmExtError as error:
        if os.environ.get("TVM_EXT_TRACEBACK") == "1":
            traceback.print_exc()
        _say(str(error))
        return error.exit_code
    except Exception as error:  # the last line of defence: never show a traceback unless asked
        if os.environ.get("TVM_EXT_TRACEBACK") == "1":
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())[:400]
        _say(
            f"unexpected {type(error).__name__} at {os.path.basename(where.filename)}:{where.lineno}: {message} "
            "(set TVM_EXT_TRACEBACK=1 for the traceback)"
        )
        return 1
    return 0


def _say(message: str) -> None:
    line = " ".join(message.split())
    click.echo(f"tvm-ext: error: {line}" if line != "interrupted" else "tvm-ext: interrupted", err=True)


if __name__ == "__main__":
    main()
