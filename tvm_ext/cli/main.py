"""Entry point of ``tvm-ext``: turns every error into one line on stderr and an exit code.

========= =================================================================
exit code meaning
========= =================================================================
0         done
1         an error in tvm-ext itself (please report it)
2         the command line is wrong: unknown command, option or value
3         the model file or artifact is missing, damaged, or in no known format
4         the model holds operators that cannot be imported
5         an input has the wrong name, shape or dtype, or is missing
6         the target is unknown or cannot be used here
7         the result cannot be written
8         a result differs from its reference by more than the tolerance
9         TVM could not compile or run the model
10        an optional package or program is needed and not installed
11        a plan for the dataflow graph is not valid
12        a VTA hardware configuration is not legal
13        a VTA instruction stream is not legal, or cannot run to its end
14        there is nothing to tune, a database does not fit, or no candidate could be measured
15        the model needs more memory than --memory-limit allows
16        a VTA board cannot be opened, does not finish, or is not what its configuration says
17        an RPC tracker or server cannot be reached, or has no machine for what was asked
18   an instruction does not fit an operator, or one of the two cannot be read
129       the terminal was closed (SIGHUP)
130       interrupted with Ctrl-C (SIGINT)
143       asked to end (SIGTERM)
========= =================================================================
"""

# Only what starts in no time is imported up here: an interrupt before main() is running would show a traceback.
from __future__ import annotations

import contextlib
import errno
import os
import sys

from tvm_ext.cli import interrupt
from tvm_ext.cli.stderr_filter import StderrFilter

_NO_HOME = "Could not determine home directory."  # what pathlib raises when TVM is imported
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code that says how it went."""
    stderr_filter = None
    try:
        _open_standard_streams()
        if os.environ.get("TVM_EXT_TRACEBACK") == "1":
            interrupt.install()
        else:
            stderr_filter = StderrFilter()
            interrupt.install(stderr_filter.stderr, stderr_filter.mute)
        _show_own_warnings()
        code = run(arguments)
    except KeyboardInterrupt:
        interrupt.finish()
        code = interrupt.exit_code()
    interrupt.ignore()
    if stderr_filter is not None:
        stderr_filter.close()
    sys.exit(code)


def _show_own_warnings() -> None:
    """Let warnings of this package be one line each; what libraries tell developers is for ``python -W``.

    ``PYTHONWARNINGS=ignore`` silences ours too, as Python does.
    """
    import warnings
    from typing import Any

    from tvm_ext.errors import TvmExtWarning

    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", TvmExtWarning)
    show = warnings.showwarning

    def one_line(message: Warning | str, category: type[Warning], *place: Any, **keywords: Any) -> None:
        if issubclass(category, TvmExtWarning):
            _say(str(message), "warning")
        else:
            show(message, category, *place, **keywords)

    warnings.showwarning = one_line


def _open_standard_streams() -> None:
    """Give the standard streams that the caller closed a place to write to, before a file gets their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):  # Python has none where it found them closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code (see the table above)."""
    try:
        from tvm_ext.cli.group import cli

        with cli.make_context("tvm-ext", sys.argv[1:] if arguments is None else list(arguments)) as context:
            _require_current_folder()
            cli.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
        return 0
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupt.received():
            interrupt.finish()
            return interrupt.exit_code()
        if not isinstance(error, Exception):
            raise
        return _report(error)


def _require_current_folder() -> None:
    """Refuse a current folder that somebody removed, in which libraries end the process with words of their own."""
    try:
        os.getcwd()
    except OSError as error:
        from tvm_ext.errors import OutputError

        raise OutputError(
            f"the current folder cannot be read ({error.strerror}): it was removed, or you may not enter it; "
            "change to another one (cd)"
        ) from None


def _report(error: Exception) -> int:
    """Say what went wrong in one line; gives the exit code."""
    import click

    from tvm_ext.errors import TvmExtError, TvmExtWarning

    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "tvm-ext"
        _say(f"{error.format_message().rstrip('.')}; see `{command} --help`")
        return error.exit_code
    if isinstance(error, click.ClickException):
        _say(error.format_message())
        return error.exit_code
    if os.environ.get("TVM_EXT_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, TvmExtError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, TvmExtWarning):
        _say(str(error))  # python -W error
        return 1
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        _discard_stdout()  # the reader of our output (head, less) has seen enough: not an error
        return 0
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        _discard_stdout()
        _say(f"cannot write {error.filename or 'the output'}: {error.strerror}; free some space or write elsewhere")
        return 7
    if _is_out_of_memory(error):
        _say(
            "there is not enough memory: neither this process (ulimit -v, a control group) nor the machine has more; "
            "allow it more, or take a smaller model or smaller inputs"
        )
        return 9
    if isinstance(error, RuntimeError) and str(error) == _NO_HOME:
        _say("this user has no home folder, and TVM keeps a cache there: set the environment variable HOME to a folder")
        return 7
    _say(_unexpected(error))
    return 1


def _is_out_of_memory(error: Exception) -> bool:
    is_native = "std::bad_alloc" in str(error)  # in an error of TVM, which has no class for it
    return is_native or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def _unexpected(error: Exception) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    message = " ".join(str(error).split())[:400]
    return f"unexpected {type(error).__name__}{where}: {message} (set TVM_EXT_TRACEBACK=1 for the traceback)"


def _say(message: str, kind: str = "error") -> None:
    line = " ".join(message.split())
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be full or closed
        sys.stderr.write(f"tvm-ext: {kind}: {printable}\n")
        sys.stderr.flush()


def _reader_is_gone() -> bool:
    import select

    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0))


def _discard_stdout() -> None:
    """Stop Python from writing to stdout again when it exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
