"""Take away the scopes that TVM's scattering kernels put around their statements.

before: ``with T.attr(0, "pragma_scope", "seq"): ...``
after:  ``...``

The scope means nothing once the kernel is built, and TVM's code generator warns on stderr of a pragma it does not know.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx


def drop_scope_pragmas() -> tvm.transform.Pass:
    """Make the pass; it runs anywhere between the making of kernels and code generation."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.DropScopePragmas")
    def _drop(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return tvm_ffi.structural_mutate(func, [(tirx.AttrStmt, _without)])

    return _drop


def _without(statement: Any, mutator: Any) -> Any:
    statement = mutator.default_mutate(statement)
    return statement.body if statement.attr_key == "pragma_scope" else statement
