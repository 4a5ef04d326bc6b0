"""One storage for all intermediate tensors of a function, each at a byte offset planned ahead.

Takes the place of ``StaticPlanBlockMemory``: works on functions whose kernels are given their results to write
(``CallTIRRewrite``) and whose shapes are known. Tensors that leave the function stay outside, as the caller keeps them.

before: ``a = R.builtin.alloc_tensor(..); f(x, a); b = R.builtin.alloc_tensor(..); g(a, b); ...``
after:  ``arena = R.memory.alloc_storage(..); a = tensor(arena, 0); f(x, a); b = tensor(arena, 4096); g(a, b); ...``

A compiled kernel wants tensors whose data pointer is where the data begins, so every tensor of the arena goes through
``R.memory.ensure_zero_offset``, which moves the pointer by the offset and copies nothing. That needs memory whose
addresses the host may compute with, and is tested on CPUs; other targets keep TVM's plan.

A concatenation whose operands were planned as parts of its result (:data:`CONCATENATE_ATTRIBUTE`) is no call any more:
the operands are tensors inside the result. In the same way the results of a slice (:data:`SLICE_ATTRIBUTE`) are tensors
inside its operand.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory import ArenaPlan, plan_arena, verify_arena
from tvm_ext.memory.relax.kernel_access import CONCATENATE_ATTRIBUTE, SLICE_ATTRIBUTE

ALIGNMENT = 64
"""Bytes to which every tensor is aligned, as compiled kernels expect of their arguments."""

LARGE_EFFORT = 8_000_000
"""Of the second search for a small arena; see :func:`tvm_ext.memory.plan_arena`."""

SOLVER_EFFORT = 5_000_000
"""Steps of work of the solver, about a microsecond each."""

PAGE = 4096
"""Bytes above the lower bound that are not worth a longer search: the system hands out no less at a time."""

NOTE_ATTRIBUTE = "tvm_ext.memory_note"
"""Attribute of a function that the arena leaves to ``StaticPlanBlockMemory``: why."""

_ALLOCATE = "relax.builtin.alloc_tensor"
_VIEWS = frozenset({"relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"})


class _Unplannable(Exception):
    """Raised while a function is read when it holds what the arena cannot plan."""


@dataclass
class _Reading:
    """What the arena has to know of a function.

    Attributes
    ----------
    bindings : list
        All bindings, in order.
    sizes : dict of var to int
        Bytes of each allocation that may go into the arena.
    root : dict of var to var
        For each variable that stands for an allocated tensor: the variable of the allocation.
    uses : dict of var to list of int
        For each allocation, the bindings that touch its bytes.
    parts : dict of var to (var, int)
        For each allocation that is a part of another one: that one, and the byte offset in it.
    dropped : set of int
        Bindings that call a concatenation of parts, or take parts out.
    """

    bindings: list[Any]
    sizes: dict[Any, int] = field(default_factory=dict)
    root: dict[Any, Any] = field(default_factory=dict)
    tuples: dict[Any, list[Any]] = field(default_factory=dict)
    uses: dict[Any, list[int]] = field(default_factory=dict)
    escaping: set[Any] = field(default_factory=set)
    parts: dict[Any, tuple[Any, int]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


def arena(shares_storage: bool = True) -> tvm.transform.Pass:
    """Make the pass; a function it cannot plan gets ``StaticPlanBlockMemory``, and the reason as an attribute.

    Parameters
    ----------
    shares_storage : bool
        Whether tensors of the target may begin inside a storage.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.Arena")
    def _arena(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        left = False
        for global_var, func in mod.functions.items():
            if not isinstance(func, relax.Function):
                continue
            try:
                if not shares_storage:
                    target = tvm.target.Target.current(allow_none=True)
                    where = "this target" if target is None else target.kind.name
                    raise _Unplannable(f"tensors inside one storage are only known to work on CPUs, not on {where}")
                planned = _plan_function(mod, func)
            except _Unplannable as reason:
                left = True
                planned = func.with_attr(NOTE_ATTRIBUTE, f"planned by StaticPlanBlockMemory: {reason}")
            updated.update_func(global_var, planned)
        return relax.transform.StaticPlanBlockMemory()(updated) if left else updated

    return _arena


def _plan_function(mod: tvm.IRModule, func: relax.Function) -> relax.Function:
    found = _read(mod, func)
    intervals: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    names: dict[Any, str] = {}
    for variable, size in found.sizes.items():
        touched = _touched(found, variable)
        if variable not in found.parts and touched and not _escapes(found, variable):
            names[variable] = f"{len(names)}:{variable.name}"
            intervals[names[variable]] = (min(touched), max(touched))
            sizes[names[variable]] = size
    if not names:
        return _rebuild(func, _Emitter(found, {}, None))
    plan = _smallest_arena(intervals, sizes)
    verify_arena(plan, intervals, sizes)
    offsets = {variable: plan.offsets[name] for variable, name in names.items()}
    return _rebuild(func, _Emitter(found, offsets, plan.size))


def _smallest_arena(intervals: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> ArenaPlan:
    """Look harder until the lower bound is nearly reached: a longer search, then the solver, where there is one."""
    plan = plan_arena(intervals, sizes, alignment=ALIGNMENT)
    if plan.size - plan.lower_bound < PAGE:
        return plan
    longer = plan_arena(
        intervals,
        sizes,
        alignment=ALIGNMENT,
        effort=LARGE_EFFORT,
        exact=importlib.util.find_spec("ortools") is not None,
        tolerance=PAGE,
        solver_effort=SOLVER_EFFORT,
    )
    return min(plan, longer, key=lambda plan: plan.size)


# ---- reading


def _read(mod: tvm.IRModule, func: relax.Function) -> _Reading:
    if not isinstance(func.body, relax.SeqExpr):
        raise _Unplannable("its body is no sequence of bindings")
    found = _Reading([binding for block in func.body.blocks for binding in block.bindings])
    for index, binding in enumerate(found.bindings):
        value = binding.value
        if isinstance(value, relax.If):
            raise _Unplannable(f"it branches at '{binding.var.name}'")
        if isinstance(value, relax.Function):
            raise _Unplannable(f"it defines a function inside, '{binding.var.name}'")
        if isinstance(value, relax.Call):
            _read_call(mod, found, index, binding)
        else:
            _rename(found, binding.var, value)
    found.escaping.update(_roots(found, func.body.body))
    return found


def _read_call(mod: tvm.IRModule, found: _Reading, index: int, binding: Any) -> None:
    call, name = binding.value, getattr(binding.value.op, "name", "")
    if name == _ALLOCATE:
        found.root[binding.var] = binding.var
        size = _static_bytes(call)
        if size is None:
            raise _Unplannable(f"the size of '{binding.var.name}' is only known at run time")
        found.sizes[binding.var] = size
        if not size or str(call.args[3].value) != "global" or int(call.args[2]) != 0:
            found.escaping.add(binding.var)
        return
    roots = list(dict.fromkeys(root for argument in call.args for root in _roots(found, argument)))
    if name in _VIEWS:
        _rename(found, binding.var, call.args[0])
        return
    callee = mod.functions.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
    for root in roots:
        found.uses.setdefault(root, []).append(index)
    if isinstance(callee, tvm.tirx.PrimFunc):
        if CONCATENATE_ATTRIBUTE in (callee.attrs or {}):
            *operands, result = call.args
            _read_parts(found, index, call, result, operands, callee.attrs[CONCATENATE_ATTRIBUTE])
        elif SLICE_ATTRIBUTE in (callee.attrs or {}):
            operand, *results = call.args
            _read_parts(found, index, call, operand, results, callee.attrs[SLICE_ATTRIBUTE])
    elif not _returns_nothing(call):
        # What it returns may be a view of what it is given, so that the end of its life is not seen here.
        found.escaping.update(roots)


def _read_parts(found: _Reading, index: int, call: Any, whole: Any, parts: Sequence[Any], offsets: Any) -> None:
    root = next(iter(_roots(found, whole)), None)
    roots = [next(iter(_roots(found, part)), None) for part in parts]
    if root is None or None in roots or any(part in found.parts for part in roots):
        raise _Unplannable(f"the tensors of '{call.op.name_hint}' are no allocations of their own")
    for part, offset in zip(roots, offsets, strict=True):
        found.parts[part] = (root, int(offset))
    found.dropped.add(index)


def _rename(found: _Reading, variable: Any, value: Any) -> None:
    if isinstance(value, tvm.ir.Tuple):
        found.tuples[variable] = list(value.fields)
    elif isinstance(value, tvm.ir.TupleGetItem):
        fields = _fields(found, value.tuple_value)
        if fields is None:
            found.escaping.update(_roots(found, value.tuple_value))
        else:
            _rename(found, variable, fields[value.index])
    elif isinstance(value, tvm.ir.Var):
        if value in found.tuples:
            found.tuples[variable] = found.tuples[value]
        if value in found.root:
            found.root[variable] = found.root[value]


def _fields(found: _Reading, value: Any) -> list[Any] | None:
    return list(value.fields) if isinstance(value, tvm.ir.Tuple) else found.tuples.get(value)


def _roots(found: _Reading, value: Any) -> Iterable[Any]:
    """Yield the allocations whose bytes an expression gives access to."""
    if isinstance(value, tvm.ir.TupleGetItem):
        fields = _fields(found, value.tuple_value)
        yield from _roots(found, value.tuple_value if fields is None else fields[value.index])
    elif (fields := _fields(found, value)) is not None:
        for item in fields:
            yield from _roots(found, item)
    elif value in found.root:
        yield found.root[value]


def _static_bytes(call: Any) -> int | None:
    shape = call.args[0]
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        return None
    dtype = tvm.DataType(str(call.args[1].value))
    return prod(int(extent) for extent in shape) * -(-dtype.bits // 8) * dtype.lanes


def _returns_nothing(call: Any) -> bool:
    return isinstance(call.ty, tvm.ir.TupleType) and not call.ty.fields


def _whole(found: _Reading, variable: Any) -> tuple[Any, int]:
    """Find the allocation that a part is in, at which offset; an allocation that is no part is in itself."""
    offset = 0
    while variable in found.parts:
        variable, further = found.parts[variable]
        offset += further
    return variable, offset


def _touched(found: _Reading, whole: Any) -> list[int]:
    return [
        step
        for variable, steps in found.uses.items()
        if _whole(found, variable)[0].same_as(whole)
        for step in steps
        if step not in found.dropped
    ]


def _escapes(found: _Reading, whole: Any) -> bool:
    return any(_whole(found, variable)[0].same_as(whole) for variable in found.escaping)


# ---- writing


class _Emitter:
    """Gives the bindings of the planned function.

    Parameters
    ----------
    found : _Reading
        The function.
    offsets : dict of var to int
        Where each allocation of the arena begins, in bytes.
    size : int or None
        Bytes of the arena; None when nothing is in it.
    """

    def __init__(self, found: _Reading, offsets: dict[Any, int], size: int | None) -> None:
        self._found = found
        self._offsets = offsets
        self._builder = relax.BlockBuilder()
        self._made: dict[Any, Any] = {}
        self.bindings: list[Any] = []
        if size is not None:
            self._storage = self._bind(
                "arena", relax.op.memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8")
            )
        allocations = {binding.var: binding for binding in found.bindings if binding.var in found.sizes}
        for index, binding in enumerate(found.bindings):
            if index in found.dropped:
                continue
            if binding.var in found.sizes:
                whole, offset = _whole(found, binding.var)
                if whole in offsets:
                    self._tensor(binding, offsets[whole] + offset)
                elif whole.same_as(binding.var):
                    if whole not in self._made:
                        self._keep(binding)
                else:
                    if whole not in self._made:
                        self._keep(allocations[whole])
                    self._view(binding, whole, offset)
            else:
                self.bindings.append(binding)

    def _bind(self, name: str, call: Any) -> Any:
        value = self._builder.normalize(call)
        variable = relax.Var(name, value.ty)
        self.bindings.append(relax.VarBinding(variable, value))
        return variable

    def _keep(self, binding: Any) -> None:
        """Keep an allocation outside the arena."""
        self._made[binding.var] = True
        self.bindings.append(binding)

    def _tensor(self, binding: Any, offset: int) -> None:
        """Make a tensor of the arena; one that looks the same as an earlier one is that one."""
        shape, dtype = binding.value.args[0], str(binding.value.args[1].value)
        key = (offset, tuple(int(extent) for extent in shape), dtype)
        if key in self._made:
            self.bindings.append(relax.VarBinding(binding.var, self._made[key]))
            return
        call = relax.op.memory.alloc_tensor(self._storage, offset, shape, dtype)
        if offset:
            moved = relax.op.memory.ensure_zero_offset(self._bind(f"{binding.var.name}_at", call))
            call = moved
        self.bindings.append(relax.VarBinding(binding.var, self._builder.normalize(call)))
        self._made[key] = binding.var

    def _view(self, binding: Any, whole: Any, offset: int) -> None:
        """Make a tensor that is a part of an allocation outside the arena."""
        shape, dtype = binding.value.args[0], str(binding.value.args[1].value)
        view = self._bind(f"{binding.var.name}_at", relax.op.memory.view(whole, shape, dtype, offset))
        value = self._builder.normalize(relax.op.memory.ensure_zero_offset(view))
        self.bindings.append(relax.VarBinding(binding.var, value))


def _rebuild(func: relax.Function, emitter: _Emitter) -> relax.Function:
    body = relax.SeqExpr([relax.BindingBlock(emitter.bindings)], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
