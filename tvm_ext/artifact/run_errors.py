"""What it means when compiled code fails at run time, as an error of this package."""

from __future__ import annotations

import re

from tvm_ext.artifact.device_errors import device_error
from tvm_ext.errors import CompileError, InputError, TvmExtError, first_line

_MISMATCH = re.compile(r"\((-?\d+) vs\. (-?\d+)\) : ErrorContext\(match_cast,.*shape\[(\d+)\] mismatch")
"""What the virtual machine says where an extent that was computed differs from the tensor that it is of."""

_NOT_ALLOCATED = re.compile(r"std::bad_alloc|negative dimensions are not allowed")


def run_error(error: Exception) -> TvmExtError:
    """Give the error that tells a user what ``error``, which a run of a model raised, is about.

    Parameters
    ----------
    error : Exception
        Of whatever class TVM's C++ side names.

    Returns
    -------
    InputError
        If the model was given values that it is not made for.
    CompileError
        If the compiled code failed.
    """
    if isinstance(error, AssertionError):  # by an operator of the model that checks values: relax.assert_op
        return InputError(
            f"the model itself refuses its inputs: {first_line(error).rstrip('.')}; give values that it allows"
        )
    mismatch = _MISMATCH.search(first_line(error))
    if mismatch is not None:
        return InputError(
            f"the values of the inputs do not fit together: a tensor of the model has {mismatch[1]} elements along "
            f"axis {mismatch[3]} where others make it {mismatch[2]}; give values that fit"
        )
    if _NOT_ALLOCATED.search(str(error)) is not None:
        return InputError(
            "a tensor of the model cannot be allocated: a size that is computed from values of the inputs is negative "
            "or too large, or the memory is full; give values that the model is made for"
        )
    return CompileError(f"the compiled model failed while running: {device_error(str(error)) or first_line(error)}")
