"""Keep kernels out of fusion where values would be computed again and again for each of their uses.

before: ``t = tanh(v); w = multiply(v, t); ...``, every operator fused into the next
after:  ``w = multiply_apart(v, t)``, which is never fused: its result is stored, and what uses it loads it

A kernel that is merged with the next becomes part of the expression of each element, once for every time that it is
loaded. A chain of ``v * tanh(v + v * v * v)`` multiplies the loads by four or five at every link, and so the time to
compile and to run it. Where an expression would load what it has already loaded more than :data:`MOST_AGAIN` times
over, the value that this is worth most for is computed once, for all who use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import INJECTIVE, OPAQUE, rewritten

MOST_AGAIN = 64
"""Loads of an element's expression, beyond one of each tensor and those of the last operator, that fusion may add."""

_REDUCTION = 3


def limit_recomputation() -> tvm.transform.Pass:
    """Make the pass; it runs before operators are fused, after they became annotated kernels."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.LimitRecomputation")
    def _limit(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        kernels: dict[Any, Counter[int]] = {}
        apart = {
            variable
            for func in mod.functions.values()
            if isinstance(func, relax.Function)
            for block in (func.body.blocks if isinstance(func.body, relax.SeqExpr) else ())
            for variable in values_to_keep(_values(mod, block, kernels))
        }
        if not apart:
            return mod
        rewriter = ApartMutator(mod, apart)
        return rewritten(mod, rewriter)

    return _limit


@dataclass(frozen=True)
class Value:
    """What one operator computes, as far as fusion is concerned.

    Attributes
    ----------
    name : hashable
        The variable.
    loads : mapping
        How often an element of it loads each of its operands, by their names.
    merges : bool
        Whether it can become part of the expressions of what uses it.
    """

    name: Any
    loads: Mapping[Any, int]
    merges: bool


def values_to_keep(values: Sequence[Value]) -> list[Any]:
    """Name the values that are not to be computed where they are used, in the order of ``values``."""
    known = {value.name: value for value in values}
    kept: set[Any] = set()
    sizes: dict[Any, Counter[Any]] = {}
    for value in values:
        sizes[value.name] = _expanded(value, sizes, kept, known)
        while _excess(value, sizes[value.name]) > MOST_AGAIN:
            chain = _ancestors(value, kept, known)
            if not chain:
                break
            left = excess_without(value, [known[name] for name in chain])
            least = min(left)
            kept.add(min((name for name, excess in zip(chain, left, strict=True) if excess == least), key=str))
            for name in [*chain, value.name]:
                sizes[name] = _expanded(known[name], sizes, kept, known)
    return [value.name for value in values if value.name in kept]


def _expanded(
    value: Value, sizes: Mapping[Any, Counter[Any]], kept: set[Any], known: Mapping[Any, Value]
) -> Counter[Any]:
    """Count the loads of an element from each stored tensor when all that can be is computed in place."""
    total: Counter[Any] = Counter()
    for operand, count in value.loads.items():
        if _is_inlined(operand, kept, known):
            for leaf, times in sizes[operand].items():
                total[leaf] += count * times
        else:
            total[operand] += count
    return total


def excess_without(value: Value, chain: Sequence[Value]) -> list[int]:
    """Count, for each value of ``chain``, the excess that is left of an element of ``value`` when that one is stored.

    A load is a path from ``value`` down to a stored tensor, so that no expression has to be expanded anew for each
    choice: storing a value puts one load in the place of all those below each of its occurrences, and hides the tensors
    to which every path leads through it, those that it dominates.

    Parameters
    ----------
    value : Value
        The operator whose expression is counted.
    chain : sequence of Value
        All that is computed in place for it, operands first.
    """
    nodes = [*chain, value]
    place = {node.name: number for number, node in enumerate(chain)}
    totals: list[int] = []
    stored: dict[Any, int] = {}
    operands: list[list[tuple[int, int]]] = []
    for node in nodes:
        edges = []
        for operand, count in node.loads.items():
            at = place.get(operand)
            # Stored tensors are numbered from -1 down.
            edges.append((stored.setdefault(operand, -1 - len(stored)) if at is None else at, count))
        operands.append(edges)
        totals.append(sum(count * (totals[at] if at >= 0 else 1) for at, count in edges))
    top = len(chain)
    occurrences = [0] * top + [1]
    dominator: dict[int, int] = {}
    for user in range(top, -1, -1):  # users come before their operands
        for at, count in operands[user]:
            if at >= 0:
                occurrences[at] += count * occurrences[user]
            dominator[at] = _common_dominator(dominator.get(at, user), user, dominator)
    hidden = [0] * (top + 1)
    for tensor in stored.values():
        hidden[dominator[tensor]] += 1
    for number in range(top):
        hidden[dominator[number]] += hidden[number]
    own = sum(value.loads.values())
    left = []
    for number in range(top):
        total = totals[top] - occurrences[number] * (totals[number] - 1)
        left.append(min(total - (len(stored) - hidden[number] + 1), total - own))
    return left


def _common_dominator(one: int, other: int, dominator: Mapping[int, int]) -> int:
    while one != other:
        if one < other:
            one = dominator[one]
        else:
            other = dominator[other]
    return one


def _excess(value: Value, size: Counter[Any]) -> int:
    """Count the loads that come again, or that fusion adds to those of the operator itself, if these are fewer."""
    total = size.total()
    return min(total - len(size), total - sum(value.loads.values()))


def _ancestors(value: Value, kept: set[Any], known: Mapping[Any, Value]) -> list[Any]:
    """List what is computed in place for a value, operands first."""
    order: dict[Any, None] = {}
    pending = [(operand, False) for operand in value.loads]
    while pending:
        name, finished = pending.pop()
        if name in order or not _is_inlined(name, kept, known):
            continue
        if finished:
            order[name] = None
        else:
            pending.append((name, True))
            pending += [(operand, False) for operand in known[name].loads]
    return list(order)


def _is_inlined(name: Any, kept: set[Any], known: Mapping[Any, Value]) -> bool:
    return name in known and known[name].merges and name not in kept


def _values(mod: tvm.IRModule, block: relax.BindingBlock, kernels: dict[Any, Counter[int]]) -> list[Value]:
    """Read the calls of kernels in a block that fusion may merge with others."""
    found = []
    for binding in block.bindings:
        call = getattr(binding, "value", None)
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_tir":
            continue
        func = mod[call.args[0]]
        pattern = int((func.attrs or {}).get("op_pattern", OPAQUE))
        if pattern > _REDUCTION or not isinstance(binding.var.ty, relax.TensorType):
            continue
        if call.args[0] not in kernels:
            kernels[call.args[0]] = parameter_loads(func)
        loads: Counter[Any] = Counter()
        for position, operand in enumerate(call.args[1].fields if isinstance(call.args[1], relax.Tuple) else ()):
            if isinstance(operand, relax.Var) and kernels[call.args[0]][position]:
                loads[operand] += kernels[call.args[0]][position]
        found.append(Value(binding.var, loads, pattern <= INJECTIVE))
    return found


def parameter_loads(func: tirx.PrimFunc) -> Counter[int]:
    """Count how often an element of a kernel's result loads each parameter, by its position, all blocks merged."""
    sizes: dict[Any, Counter[int]] = {buffer: Counter({place: 1}) for place, buffer in enumerate(func.params)}
    last: Counter[int] = Counter()

    def store(statement: Any) -> None:
        nonlocal last
        total: Counter[int] = Counter()

        def load(node: Any) -> None:
            if not node.source.same_as(statement.buffer):
                total.update(sizes.get(node.source, Counter()))

        tvm_ffi.structural_walk(statement.value, (tvm.ir.TensorLoad, load))
        if total or statement.buffer not in sizes:  # what a reduction begins with loads nothing
            sizes[statement.buffer] = last = total

    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, store))
    return last


@mutator
class ApartMutator(PyExprMutator):
    """Calls kernels that are not fused for the values that are to be kept.

    Parameters
    ----------
    mod : tvm.IRModule
    apart : set of relax.Var
        The values.
    """

    def __init__(self, mod: tvm.IRModule, apart: set[Any]) -> None:
        super().__init__(mod)
        self._mod, self._apart = mod, apart

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Call a copy of the kernel that is opaque to fusion."""
        if binding.var in self._apart:
            call = binding.value
            name = f"{call.args[0].name_hint}_apart"
            kernel = self.builder_.add_func(self._mod[call.args[0]].with_attr("op_pattern", OPAQUE), name)
            apart = relax.Call(call.op, [kernel, *call.args[1:]], call.attrs, call.ty_args)
            binding = relax.VarBinding(binding.var, self.builder_.normalize(apart))
        super().visit_var_binding_(binding)
