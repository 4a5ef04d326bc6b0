"""Finds Relax operators that no pass turns into kernels, before the code generator stumbles over them.

TVM's own message there ("CodeGenVM cannot emit this Relax operator directly") names neither the tensor nor where in the
model it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_ext.graph.origins import words_of
from tvm_ext.passes.empty_tensors import empty_tensors
from tvm_ext.passes.float_legalizations import FLOAT_LEGALIZATIONS
from tvm_ext.passes.indexing import INDEXING_LEGALIZATIONS
from tvm_ext.passes.resize_corners import RESIZE_LEGALIZATIONS
from tvm_ext.passes.shared_kernels import legalize_once

# Left alone by LegalizeOps; the virtual machine's passes take care of them.
RUNTIME_PREFIXES = ("relax.builtin.", "relax.memory.", "relax.vm.")
RUNTIME_OPERATORS = frozenset(
    f"relax.{name}"
    for name in """
    assert_op call_builtin_with_ctx call_dps_packed call_inplace_packed call_pure_packed call_tir call_tir_inplace
    call_tir_with_grad hint_on_device invoke_closure invoke_pure_closure make_closure null_value print shape_of
    tensor_to_shape to_vdevice
    """.split()
)


@dataclass(frozen=True)
class UnloweredCall:
    """A call that would reach the code generator.

    Attributes
    ----------
    variable : str
        The Relax variable that it, or what it is part of, was bound to in the imported module.
    operator : str
        The Relax operator.
    reason : str
    """

    variable: str
    operator: str
    reason: str


def unlowered_calls(mod: tvm.IRModule) -> list[UnloweredCall]:
    """Legalise a copy of a module and list the operators that are left.

    Parameters
    ----------
    mod : tvm.IRModule
        With high-level operators; not changed.
    """
    passes = tvm.transform.Sequential(
        [
            empty_tensors(),  # as the pipeline does it: TVM has no kernel for a mean over nothing
            relax.transform.DecomposeOpsForInference(),
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            legalize_once(FLOAT_LEGALIZATIONS | RESIZE_LEGALIZATIONS | INDEXING_LEGALIZATIONS),
        ]
    )
    with tvm.target.Target("llvm"):
        try:
            legal = passes(mod)
        except Exception as error:  # TVM raises whatever its C++ side threw
            return [_culprit(mod, error)]
    return [
        UnloweredCall(binding.var.name, call.op.name, _why(call))
        for binding, call in _calls(legal)
        if isinstance(call.op, tvm.ir.Op)
        and call.op.name not in RUNTIME_OPERATORS
        and not call.op.name.startswith(RUNTIME_PREFIXES)
    ]


def error_line(error: BaseException) -> str:
    """Pick from an error what a person can make sense of: its message without TVM's traceback and checked condition."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line for line in lines if "Check failed" in line), lines[-1] if lines else "")
    text = re.sub(r"^.*?Check failed: .*? is false: ", "", text)
    if isinstance(error, AttributeError | KeyError | IndexError | TypeError | AssertionError) or not text:
        return f"{type(error).__name__}{f': {text}' if text else ''}"
    return text


def _calls(mod: tvm.IRModule) -> Iterator[tuple[relax.Binding, relax.Call]]:
    """Every call in the functions of a module with the binding around it, the branches of ``If`` included."""
    found: list[tuple[relax.Binding, relax.Call]] = []
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            _collect(function.body, found)
    yield from found


def _collect(body: relax.Expr, found: list[tuple[relax.Binding, relax.Call]]) -> None:
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                _collect(binding.value.true_branch, found)
                _collect(binding.value.false_branch, found)
            elif isinstance(binding.value, relax.Call):
                found.append((binding, binding.value))


def _why(call: relax.Call) -> str:
    if call.op.get_attr("FLegalize") is None:
        return "TVM has no kernel for it"
    return "TVM can lower it only for shapes that are known when compiling, and here they depend on values"


def _culprit(mod: tvm.IRModule, error: Exception) -> UnloweredCall:
    """Find the call on which legalising failed, by trying one after the other."""
    for binding, call in _calls(mod):
        legalize = isinstance(call.op, tvm.ir.Op) and call.op.get_attr("FLegalize")
        if not legalize:
            continue
        builder = relax.BlockBuilder()
        with builder.function("main", params=[]):
            try:
                legalize(builder, call)
            except Exception as failure:  # TVM raises whatever its C++ side threw
                return UnloweredCall(binding.var.name, call.op.name, error_line(failure))
            finally:
                builder.emit_func_output(relax.Tuple([]))
    return UnloweredCall("", "", error_line(error))


def origin_of(variable: str, mod: tvm.IRModule) -> str:
    """Words for the node of the model that a Relax variable of an imported module comes from.

    Converters bind helper variables before the output of their node, so a variable without words belongs to the next
    one that has some.
    """
    seen = False
    for binding, _ in _calls(mod):
        seen = seen or binding.var.name == variable
        if seen and (words := words_of(binding.var)):
            return words[0]
    return f"Relax variable {variable!r}"
