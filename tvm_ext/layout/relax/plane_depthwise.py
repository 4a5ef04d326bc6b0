"""Depthwise convolutions between kernels that work on planes stay in planes, and shuffle channels as they read them.

before: ``y = conv2d(shuffle(x), w, groups=channels)`` between products of planes
after:  ``y = plane_depthwise(x, w)``, which pads the channel of ``x`` that is next

``shuffle`` is a reshape of the channels, a transpose of their parts and a reshape back. Without the pass, the
convolution would read and write blocks of channels, which takes two transpositions.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision, deciding_pass
from tvm_ext.graph.origins import emit_from, words_of
from tvm_ext.layout import lanes as lane_arithmetic
from tvm_ext.layout.plane_plan import Shuffle, plan_planes, shuffle_of, verify_planes
from tvm_ext.layout.relax.convolution import convolved_shape
from tvm_ext.passes.bindings import Bindings, calls, permutation
from tvm_ext.relax_utils import OUT_ELEMENTWISE, read_only, static_shape
from tvm_ext.schedules.compute.plane_depthwise import plane_depthwise
from tvm_ext.schedules.cpu.machine import Machine, machine_of

_ARITHMETIC = frozenset((*lane_arithmetic.UNARY, *lane_arithmetic.BINARY))
_BLOCKED = frozenset(
    "relax.nn.conv1d relax.nn.conv2d relax.nn.conv3d relax.nn.conv2d_transpose relax.nn.max_pool2d relax.nn.avg_pool2d "
    "relax.nn.adaptive_avg_pool2d relax.mean relax.concat relax.split relax.astype".split()
)
"""Operators that may work on blocks of channels."""


def planes() -> tvm.transform.Pass:
    """Make the pass, for CPU targets; it takes static ``float32`` convolutions in layout NCHW only."""
    return deciding_pass(
        "tvm_ext.PlaneDepthwise",
        lambda mod: _PlaneMutator(mod, machine_of()),
    )


@mutator
class _PlaneMutator(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self.machine = machine
        self.decisions: list[Decision] = []
        self._values: dict[Any, Any] = {}
        self._readers: dict[Any, list[Any]] = {}

    def begin(self, function: relax.Function) -> bool:
        """Note what the variables of a function are bound to, and what reads them."""
        bindings = Bindings()
        bindings.visit_expr(function)
        self._values = bindings.values
        self._readers = defaultdict(list)
        for variable, value in bindings.values.items():
            for read in set(relax.analysis.free_vars(value)):
                self._readers[read].append((variable, value))
        return True

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a convolution between planes."""
        value = self._rewritten(binding)
        if value is None:
            super().visit_var_binding_(binding)
            return
        leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
        new = emit_from(self.builder_, value, binding.var.span, binding.var.name, leaves)
        self.set_var_remap(binding.var, new)

    def _rewritten(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not calls(call, "relax.nn.conv2d") or not isinstance(call.args[0], relax.Var):
            return None
        shape = convolved_shape(call)
        if shape is None or str(call.ty.dtype) != "float32" or not shape.is_depthwise:
            return None
        source, shuffle = self._shuffled(call.args[0])
        if not self._is_plain(source) or not self._is_read_plain(binding.var):
            return None
        height, width = (static_shape(call.args[0]) or ())[2:]
        if shape.extents != (height, width):  # seen with rows and columns exchanged
            return None
        plan = plan_planes(shape, shuffle, self.machine)
        if plan is None:
            return None
        verify_planes(plan, shape)
        self.decisions.append(Decision.of(call.op.name, "planes", plan, words_of(binding.var)))
        weight = read_only(call.args[1].value)
        return self.builder_.call_te(
            plane_depthwise,
            self.visit_expr(source),
            relax.const(np.ascontiguousarray(weight[:, 0])),
            padding=list(shape.padding),
            lanes=plan.lanes,
            factors=list(shuffle.factors),
            order=list(shuffle.order),
            primfunc_name_hint="plane_depthwise",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE},
        )

    def _shuffled(self, data: relax.Var) -> tuple[relax.Var, Shuffle]:
        """Find what a tensor is a shuffle of, and the shuffle; itself and none otherwise."""
        joined: Any = self._values.get(data)
        turned: Any = self._values.get(joined.args[0]) if calls(joined, "relax.reshape") else None
        axes = permutation(turned)
        split: Any = self._values.get(turned.args[0]) if axes is not None else None
        if axes is None or not calls(split, "relax.reshape") or not isinstance(split.args[0], relax.Var):
            return data, Shuffle()
        source, parts, shape = split.args[0], static_shape(split), static_shape(data)
        if parts is None or shape is None or static_shape(source) != shape:
            return data, Shuffle()
        found = shuffle_of(shape, parts, axes)
        return (data, Shuffle()) if found is None else (source, found)

    def _is_plain(self, variable: Any) -> bool:
        """Whether a tensor will lie in memory in planes: it comes of no operator that works on blocks of channels."""
        value: Any = self._values.get(variable)
        name = getattr(getattr(value, "op", None), "name", "")
        if name in _ARITHMETIC:
            return all(self._is_plain(arg) for arg in value.args if isinstance(arg, relax.Var))
        return name not in _BLOCKED and not isinstance(value, relax.TupleGetItem)

    def _is_read_plain(self, variable: Any) -> bool:
        """Whether everything that reads a tensor, or arithmetic on it, reads planes."""
        for reader, value in self._readers.get(variable, ()):
            name = getattr(getattr(value, "op", None), "name", "")
            if name in _BLOCKED or not isinstance(value, relax.Call):
                return False
            if name in _ARITHMETIC and not self._is_read_plain(reader):
                return False
        return True
