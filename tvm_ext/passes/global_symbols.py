"""Gives functions the names of their symbols, with the prefix of a system library where the module has one.

A program that several system libraries are linked into tells their kernels apart by a prefix (the attribute
``system_lib_prefix`` of a module). TVM's pass renames calls with a mutator that fails on the address of an element
(``Cannot treat type `ir.Call` as type `ir.Expr```), and leaves calls by name as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.tirx import PrimFunc

PREFIX = "system_lib_prefix"


def attach_global_symbols() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.AttachGlobalSymbols")
    def _attach_global_symbols(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        prefix = str((mod.attrs or {}).get(PREFIX, ""))
        return with_prefix(mod, prefix) if prefix else relax.transform.AttachGlobalSymbol()(mod)

    return _attach_global_symbols


def with_prefix(mod: tvm.IRModule, prefix: str) -> tvm.IRModule:
    """Rename the kernels of a module, and what calls them."""
    variables = {
        variable: _renamed(variable, prefix) if isinstance(function, PrimFunc) else variable
        for variable, function in mod.functions.items()
    }
    functions = {}
    for variable, function in mod.functions.items():
        name = variables[variable].name_hint
        functions[variables[variable]] = _calling(function, variables).with_attr("global_symbol", name)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _renamed(variable: tvm.ir.GlobalVar, prefix: str) -> tvm.ir.GlobalVar:
    renamed = tvm.ir.GlobalVar(prefix + variable.name_hint)
    relax.expr._update_type(renamed, variable.ty)
    return renamed


def _calling(function: Any, variables: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> Any:
    """Let a function call others by their new names."""
    names = {variable.name_hint: renamed.name_hint for variable, renamed in variables.items()}

    def named(call: Any) -> Any:
        if getattr(call.op, "name", "") != "tirx.tvm_call_cpacked" or call.args[0].value not in names:
            return call
        name = tvm.ir.StringImm(names[call.args[0].value])
        return tvm.ir.Call(call.op, [name, *call.args[1:]], call.attrs, call.ty_args, ret_ty=call.ty)

    callbacks = [(tvm.ir.GlobalVar, lambda variable: variables.get(variable, variable)), (tvm.ir.Call, named)]
    return tvm_ffi.structural_map(function, callbacks)
