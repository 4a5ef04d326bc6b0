"""Operators become kernels as in TVM's ``LegalizeOps``, but calls that are alike share one from the start.

before: ``a = conv2d(x, v); b = conv2d(y, w)``        of the same shapes: two kernels are made, and found to be equal
after:  ``a = call_tir(conv2d, (x, v)); b = call_tir(conv2d, (y, w))``        made once

A network of cells has hundreds of calls of some dozen kernels, each of which takes milliseconds to make.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import constant, open_shape

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

LARGEST_LITERAL = 64
"""Elements of a constant up to which its values count, too: scalars become part of a kernel."""


def legalize_once(customized: Mapping[str, Legalization] | None = None) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    customized : mapping from str to function, optional
        Rules of operators that go before TVM's own.
    """
    rules = dict(customized or {})

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.LegalizeOnce")
    def _legalize_once(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = SharedKernels()
        shared = {}
        for name in _operators(mod):
            rule = rules.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
            if rule is not None:
                shared[name] = _shared(rule, kernels)
        return relax.transform.LegalizeOps(rules | shared)(mod)

    return _legalize_once


def _operators(mod: tvm.IRModule) -> set[str]:
    """List the operators that are called, and not only once."""
    counts: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            counts[node.op.name] = counts.get(node.op.name, 0) + 1

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return {name for name, count in counts.items() if count > 1}


class SharedKernels:
    """The kernels that were made in a module so far, by what tells their calls apart."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[relax.Call, list[int]]] = {}

    def call(self, what: Any, operands: Sequence[Any], make: Callable[[], relax.Expr]) -> relax.Expr:
        """Call a kernel that is known, or make one.

        Parameters
        ----------
        what
            All that the kernel depends on but its operands: strings, numbers, functions, and containers of them.
        operands : sequence
            Tensors (which may be constants), and shapes and numbers that are part of the kernel.
        make : callable
            Makes the call.

        Returns
        -------
        relax.Expr
            A call of a known kernel if ``what`` is the same, and operands are of the same types.
        """
        key = _key(operands)
        if key is None:
            return make()
        key = (_hashable(what), key)
        if key in self._known:
            known, positions = self._known[key]
            arguments = relax.Tuple([operands[position] for position in positions])
            return relax.Call(known.op, [known.args[0], arguments], known.attrs, known.ty_args)
        made = make()
        taken = _positions(made, operands)
        if taken is not None:
            self._known[key] = made, taken
        return made


def _shared(rule: Legalization, kernels: SharedKernels) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        tuples = tuple(len(argument.fields) if isinstance(argument, tvm.ir.Tuple) else None for argument in call.args)
        attributes = None if call.attrs is None else tvm_ffi.StructuralKey(call.attrs)
        what = (str(call.op.name), attributes, tuples)
        return kernels.call(what, _operands(call), lambda: rule(builder, call))

    return legalize


def _operands(call: relax.Call) -> list[Any]:
    """List what an operator is called on, the fields of tuples one by one."""
    found: list[Any] = []
    for argument in call.args:
        found += argument.fields if isinstance(argument, tvm.ir.Tuple) else [argument]
    return found


def _key(operands: Sequence[Any]) -> Hashable | None:
    """Say by what operands are told from others that take another kernel; None if that cannot be said."""
    parts: list[Hashable] = []
    for operand in operands:
        if isinstance(operand, tvm.ir.Var) and open_shape(operand) is None:
            return None
        if isinstance(getattr(operand, "ty", None), relax.TensorType):
            values = constant(operand)
            literal = None if values is None or values.size > LARGEST_LITERAL else values.tobytes()
            # An operand that is given twice may be one parameter of the kernel, or two.
            first = next(place for place, other in enumerate(operands) if other.same_as(operand))
            parts.append((tvm_ffi.StructuralKey(operand.ty), values is None, literal, first))
        elif isinstance(operand, relax.ShapeExpr | prim.IntImm | prim.FloatImm | tvm.ir.StringImm):
            parts.append(tvm_ffi.StructuralKey(operand))
        else:
            return None
    return tuple(parts)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _positions(legal: relax.Expr, operands: Sequence[Any]) -> list[int] | None:
    """Find which operands a call of a kernel takes; None if it is anything else than one such call."""
    if not isinstance(legal, relax.Call) or legal.op != _CALL_TIR or len(legal.args) != 2:
        return None
    found = []
    for argument in legal.args[1].fields:
        places = [place for place, operand in enumerate(operands) if operand.same_as(argument)]
        if not places:
            return None
        found.append(places[0])
    return found


_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
