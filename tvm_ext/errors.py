"""Every error the package raises on purpose, the exit code the command line gives it, and its warnings.

A message is one sentence that names the place (file, function, node, tensor), what was expected, what was found, and
what to try.
"""

import difflib
import sys
import warnings
from collections.abc import Iterable, Mapping


class TvmExtError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what ``tvm-ext`` exits with."""

    exit_code = 1


class ModelError(TvmExtError):
    """The model file is missing, unreadable, damaged, or not in a format that can be imported."""

    exit_code = 3


class UnsupportedOperatorError(ModelError):
    """The model is sound, but holds operators that cannot be imported; the message lists every such node.

    Attributes
    ----------
    faults : dict of str to str
        Names of the nodes, by what is wrong with them; empty where the importer has no names for nodes.
    """

    exit_code = 4

    def __init__(self, message: str, *, faults: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.faults = dict(faults or {})


class InputError(TvmExtError):
    """An input has the wrong name, shape or dtype, or is missing."""

    exit_code = 5


class TargetError(TvmExtError):
    """The compilation target is unknown or cannot be used here."""

    exit_code = 6


class OutputError(TvmExtError):
    """A result cannot be written: the folder exists, is read-only, or the disk is full."""

    exit_code = 7


class CheckError(TvmExtError):
    """A result differs from its reference by more than the tolerance."""

    exit_code = 8


class CompileError(TvmExtError):
    """TVM could not compile or run a module that was imported without error."""

    exit_code = 9


class MissingPackageError(TvmExtError):
    """An optional package is needed for what was asked; the message names the extra to install."""

    exit_code = 10


class OptionError(TvmExtError, ValueError):
    """An option has a value that is not one of its candidates."""

    exit_code = 2


class GraphError(TvmExtError):
    """A dataflow graph, an order of its nodes, or a plan for it is not valid."""

    exit_code = 11


class VTAConfigError(TvmExtError):
    """A VTA hardware configuration is not legal; the message names the key."""

    exit_code = 12


class VTAProgramError(TvmExtError):
    """A VTA instruction stream is not legal, or cannot run to its end.

    Attributes
    ----------
    instruction : int or None
        Index of the instruction in the stream.
    field : str or None
        Field of that instruction.
    """

    exit_code = 13

    def __init__(self, message: str, *, instruction: int | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.instruction = instruction
        self.field = field


class EmbeddingError(TvmExtError):
    """An instruction cannot be embedded into an operator, or one of the two cannot be read; the message says why."""

    exit_code = 18


class TuningError(TvmExtError):
    """A space has nothing to tune, a tuner's state or a database does not fit, or no candidate could be measured."""

    exit_code = 14


class MemoryLimitError(TvmExtError):
    """A module needs more memory than it was allowed; the message names the best reachable peak."""

    exit_code = 15


class VTADeviceError(TvmExtError):
    """A VTA board cannot be opened, does not finish, or computes something else than its configuration says."""

    exit_code = 16


class RemoteError(TvmExtError):
    """A tracker or a server of TVM's RPC cannot be reached, or has no machine for what was asked."""

    exit_code = 17


class TvmExtWarning(UserWarning):
    """Base of all warnings of this package: what was asked for is done, and there is something to know about it."""


class PerformanceWarning(TvmExtWarning):
    """The compiled model is right, and slower than it need be; the message says why and what to write instead."""


def warn(message: str, category: type[TvmExtWarning] = PerformanceWarning) -> None:
    """Issue a warning at the line that called this package, however deep inside it (or inside TVM) the cause is.

    Python's filters decide what becomes of it: by default each message is shown once for the line it is issued at.
    """
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _INSIDE:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)


def candidates(name: str, known: Iterable[str]) -> str:
    """List what there is in place of a name that is none of it, and the nearest."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"candidates are {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something; the name of its class where none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


_INSIDE = ("tvm_ext", "tvm", "tvm_ffi", "torch", "contextlib", "functools", "runpy")
