"""Parts of a split that are read element by element become slices, which are fused to what reads them.

before: ``a, b = split(x, 2, axis=-1); y = matmul(elu(a), w); z = exp(b) + y``
after:  ``a = strided_slice(x, ...); y = matmul(elu(a), w); b = strided_slice(x, ...); z = exp(b) + y``

A split is one kernel that copies all of its parts to memory, unless one kernel alone reads them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.mapping_types import MANY_TO_MANY, MAPPING_TYPES, OPAQUE
from tvm_ext.passes.bindings import Bindings, calls
from tvm_ext.relax_utils import INJECTIVE, open_shape, rewriting_pass


def split_parts() -> tvm.transform.Pass:
    """Make the pass, for splits along an axis of known extent; it belongs in front of the legalization of operators."""
    return rewriting_pass("tvm_ext.SplitParts", _SplitParts)


@mutator
class _SplitParts(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._bindings = Bindings()
        self._cut: set[relax.Var] = set()

    def begin(self, function: relax.Function) -> bool:
        """Find the splits that become slices."""
        self._bindings = Bindings()
        self._bindings.visit_expr(function)
        readers: dict[relax.Var, list[Any]] = defaultdict(list)
        parts: dict[relax.Var, list[relax.Var]] = defaultdict(list)
        for var, value in self._bindings.values.items():
            if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
                parts[value.tuple_value].append(var)
            for operand in _operands(value):
                readers[operand].append(value)
        self._cut = {
            whole
            for whole, items in parts.items()
            if self._bindings.uses[whole] == len(items)
            and self._is_known(self._bindings.values.get(whole))
            and all(self._bindings.is_visible(self._bindings.values[whole].args[0], item) for item in items)
            and any(self._is_read_by_elements(item, readers[item]) for item in items)
        }
        return bool(self._cut)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Take slices in the place of parts; the split is dead then."""
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._cut:
            binding = relax.VarBinding(binding.var, self._slice(value))
        super().visit_var_binding_(binding)

    def _is_known(self, split: Any) -> bool:
        if not calls(split, "relax.split"):
            return False
        shape = open_shape(split.args[0])
        return bool(shape) and isinstance(shape[int(split.attrs.axis) % len(shape)], int)  # type: ignore[index, arg-type]

    def _slice(self, item: relax.TupleGetItem) -> relax.Call:
        split = self._bindings.values[item.tuple_value]
        axis = int(split.attrs.axis) % int(split.args[0].ty.ndim)
        lengths = [int(field.shape[axis]) for field in split.ty.fields]
        begin = sum(lengths[: item.index])
        return relax.op.strided_slice(split.args[0], [axis], [begin], [begin + lengths[item.index]])

    def _is_read_by_elements(self, part: relax.Var, readers: list[Any]) -> bool:
        """Whether all that reads a part may be fused to a slice."""
        return bool(readers) and len(readers) == self._bindings.uses[part] and all(map(self._takes_elements, readers))

    def _takes_elements(self, reader: Any) -> bool:
        name = reader.op.name if isinstance(reader, relax.Call) and isinstance(reader.op, tvm.ir.Op) else ""
        if name == "relax.call_tir":
            kernel = self._mod.functions.get(reader.args[0])
            return isinstance(kernel, tirx.PrimFunc) and int((kernel.attrs or {}).get("op_pattern", 8)) <= INJECTIVE
        kind = MAPPING_TYPES.get(name.removeprefix("relax."), OPAQUE)
        # A reshape of what lies in memory is no kernel; of a slice it is one.
        return name != "relax.reshape" and kind not in (MANY_TO_MANY, OPAQUE)


def _operands(value: Any) -> list[relax.Var]:
    """List the variables that a value reads."""
    if isinstance(value, relax.Tuple):
        return [field for field in value.fields if isinstance(field, relax.Var)]
    if not isinstance(value, relax.Call):
        return []
    nested = [list(arg.fields) if isinstance(arg, relax.Tuple) else [arg] for arg in value.args]
    return [operand for operands in nested for operand in operands if isinstance(operand, relax.Var)]
