"""The blocks of a function's operators, selected for the whole function (:mod:`tvm_ext.layout.block_selection`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.layout import lanes as lane_arithmetic
from tvm_ext.layout.block_selection import (
    PLAIN,
    BlockedOperator,
    SelectedBlocks,
    Tensor,
    convolution_seconds,
    select_blocks,
)
from tvm_ext.layout.convolution_plan import ConvolutionPlan, ConvolutionShape
from tvm_ext.relax_utils import slice_begins, static_shape
from tvm_ext.schedules.cpu.machine import Machine

Convolved = Callable[[relax.Call], ConvolutionShape | None]
"""Describes a convolution that a rule takes; None: it stays plain."""

PlanOf = Callable[[ConvolutionShape, int], ConvolutionPlan | None]
"""Plans a convolution whose result has blocks of so many channels."""

WINDOWS = frozenset(
    f"relax.nn.{name}" for name in ("max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d")
)
NORMS = frozenset({"relax.nn.group_norm", "relax.nn.instance_norm"})
KEEPING = WINDOWS | lane_arithmetic.UNARY.keys() | NORMS | {"relax.astype", "relax.mean"}
"""Operators of one tensor that keep its block."""


def selected_blocks(
    function: relax.Function, machine: Machine, convolved: Convolved, plan_of: PlanOf
) -> tuple[SelectedBlocks, dict[relax.Var, int]] | None:
    """Select a block for the result of each operator of a function.

    Parameters
    ----------
    function : relax.Function
        Straight code.
    machine : Machine
    convolved, plan_of : callable

    Returns
    -------
    (SelectedBlocks, mapping from variable to int) or None
        What was selected, and the blocks of convolutions and concatenations by their variables; None where all have
        the same block, so that there is nothing to select.
    """
    problem = _Problem(machine, convolved, plan_of)
    for block in function.body.blocks:
        for binding in block.bindings:
            problem.add(binding)
    if not problem.asks:
        return None
    results = problem.tensors([function.body.body])
    problem.operators.append(BlockedOperator("results", {PLAIN: 0.0}, tuple(results)))
    found = select_blocks(problem.operators, machine)
    return found, {var: found.blocks[place] for var, place in problem.deciding.items()}


class _Problem:
    """Operators of a function, one after another."""

    def __init__(self, machine: Machine, convolved: Convolved, plan_of: PlanOf) -> None:
        lanes = machine.lanes("float32")
        self.widths = [width for width in (lanes, lanes // 2, lanes // 4) if width > 1]
        self.convolved, self.plan_of, self.machine = convolved, plan_of, machine
        self.operators: list[BlockedOperator] = []
        self.places: dict[relax.Var, int] = {}
        self.deciding: dict[relax.Var, int] = {}
        self.asks = False  # whether an operator cannot have whole vectors

    def add(self, binding: relax.VarBinding) -> None:
        """Add the operator of a binding."""
        value = binding.value
        if isinstance(value, relax.Var):
            if value in self.places:
                self.places[binding.var] = self.places[value]
            return
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.places:
            self.places[binding.var] = self.places[value.tuple_value]
            return
        name = str(getattr(getattr(value, "op", None), "name", "value"))
        operator = self._operator(name, value)
        decides = len(operator.seconds) > 1 and operator.reads != "kept"
        self.places[binding.var] = len(self.operators)
        if decides and (operator.reads == "any" or name in ("relax.concat", "relax.nn.conv2d")):
            self.deciding[binding.var] = len(self.operators)
        self.operators.append(operator)

    def _operator(self, name: str, value: relax.Expr) -> BlockedOperator:
        shape = self.convolved(value) if isinstance(value, relax.Call) else None
        if shape is not None:
            assert isinstance(value, relax.Call)
            return self._convolution(name, value, shape)
        if isinstance(value, relax.Call) and static_shape(value) is not None and len(static_shape(value) or ()) > 2:
            operands = tuple(self.tensors(value.args))
            every: Mapping[int, float] = dict.fromkeys((PLAIN, *self.widths), 0.0)
            over_channels = name == "relax.nn.layer_norm" and [int(axis) for axis in value.attrs.axes] == [1]
            if (name in KEEPING or over_channels) and operands:
                return BlockedOperator(name, every, operands[:1], "kept")
            if name in lane_arithmetic.BINARY and operands:
                return BlockedOperator(name, every, operands)
            if name == "relax.concat" and int(value.attrs.axis) % len(static_shape(value) or ()) > 1:
                return BlockedOperator(name, every, operands)
            if name == "relax.concat" and int(value.attrs.axis) in (1, 1 - len(static_shape(value) or ())):
                widths = [width for width in self.widths if not any(item.channels % width for item in operands)]
                self.asks = self.asks or self.widths[0] not in widths
                return BlockedOperator(name, dict.fromkeys((PLAIN, *widths), 0.0), operands)
        if name == "relax.strided_slice" and isinstance(value, relax.Call):
            return self._slice(name, value)
        if name == "relax.split" and isinstance(value, relax.Call):
            axis, fields = int(value.attrs.axis), [static_shape(field) for field in value.ty.fields]
            if axis == 1 and all(field is not None for field in fields):
                widths = [width for width in self.widths if not any(field[1] % width for field in fields if field)]
                self.asks = self.asks or self.widths[0] not in widths
                return BlockedOperator(name, dict.fromkeys((PLAIN, *widths), 0.0), tuple(self.tensors(value.args)))
        return BlockedOperator(name, {PLAIN: 0.0}, tuple(self.tensors(_operands(value))))

    def _slice(self, name: str, call: relax.Call) -> BlockedOperator:
        operands, shape, result = tuple(self.tensors(call.args[:1])), static_shape(call.args[0]), static_shape(call)
        begins = slice_begins(call, shape or ())
        if begins is None or shape is None or result is None or len(shape) < 3 or begins[0] or shape[0] != result[0]:
            return BlockedOperator(name, {PLAIN: 0.0}, operands)
        cuts = [begins[1], *([begins[1] + result[1]] if begins[1] + result[1] < shape[1] else [])]
        widths = [width for width in self.widths if not any(cut % width for cut in cuts)]
        self.asks = self.asks or self.widths[0] not in widths
        return BlockedOperator(name, dict.fromkeys((PLAIN, *widths), 0.0), operands)

    def _convolution(self, name: str, call: relax.Call, shape: ConvolutionShape) -> BlockedOperator:
        seconds: dict[int, float] = {}
        for width in self.widths:
            plan = self.plan_of(shape, width)
            if plan is not None and plan.block_out == width:
                seconds[width] = convolution_seconds(plan, shape, self.machine)
        operands = tuple(self.tensors(call.args[:1]))
        if not seconds:
            return BlockedOperator(name, {PLAIN: 0.0}, operands)
        self.asks = self.asks or min(seconds, key=lambda width: seconds[width]) != self.widths[0]
        if shape.is_depthwise:
            return BlockedOperator(name, seconds, operands)
        reads_planes = shape.in_channels < self.widths[0] // 2
        return BlockedOperator(name, seconds, () if reads_planes else operands, "any")

    def tensors(self, operands: Sequence[relax.Expr]) -> list[Tensor]:
        """Describe the operands that operators of the function make."""
        found = []
        for operand in operands:
            if isinstance(operand, relax.Tuple):
                found += self.tensors(operand.fields)
            elif isinstance(operand, relax.Var) and operand in self.places:
                shape = static_shape(operand)
                if shape is not None and len(shape) > 2:
                    found.append(Tensor(self.places[operand], shape[1], shape[0] * prod(shape[2:])))
        return found


def _operands(value: Any) -> Sequence[relax.Expr]:
    if isinstance(value, relax.Call):
        return [item for item in value.args if not isinstance(item, tvm.ir.GenericConst)]
    return list(value.fields) if isinstance(value, relax.Tuple) else []
