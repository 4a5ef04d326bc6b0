"""Turn transposed convolutions to few channels into ordinary ones whose channels are the phases of the stride.

before: ``y = conv2d_transpose(x, w, strides=(sh, sw))`` with ``y`` of shape ``(n, c, h * sh, w * sw)``, ``c`` far from
        filling a vector
after:  ``p = conv2d(x, w')`` of shape ``(n, sh * sw * c, h, w)``, and ``y`` is ``p`` reshaped and transposed

Vectors then run across phases, too, where otherwise each phase would compute vectors of mostly nothing.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.layout.convolution_plan import channel_block
from tvm_ext.relax_utils import read_only, rewriting_pass, static_shape
from tvm_ext.schedules.compute.transposed_convolution import transposed_as_convolution
from tvm_ext.schedules.cpu.machine import Machine, machine_of

LEAST_GAIN = 2
"""How many times fewer vectors have to be computed: the phases are put in their places afterwards."""


def phases_as_channels() -> tvm.transform.Pass:
    """Make the pass, for CPU targets; it takes static ``float32`` convolutions in layout NCHW only."""
    return rewriting_pass(
        "tvm_ext.PhasesAsChannels",
        lambda mod: PhasesMutator(mod, machine_of()),
    )


def gain_of_phases(channels: int, phases: int, machine: Machine) -> float:
    """Tell how many times fewer vectors are computed when ``phases`` of so many channels are channels themselves."""

    def vectors(count: int) -> float:
        block = channel_block(count, machine)
        return -(-count // block) * block * machine.narrowing(machine.lanes("float32") // block)

    return phases * vectors(channels) / vectors(phases * channels)


@mutator
class PhasesMutator(PyExprMutator):
    """Rewrites one module."""

    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self.machine = machine

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a transposed convolution that the pass is for."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.nn.conv2d_transpose" or not self._takes(call):
            return call
        data, weight = call.args
        strides = [int(item) for item in call.attrs.strides]
        padding = [int(item) for item in call.attrs.padding]
        shape, given = static_shape(call), static_shape(data)
        assert shape is not None
        assert given is not None
        batch, channels, *image = shape
        values = read_only(weight.value)
        phases, first, counts = transposed_as_convolution(values, strides, padding, image)
        if [count * stride for count, stride in zip(counts, strides, strict=True)] != image:
            return call  # the last row or column of phases is not whole
        behind = [
            count + taps + offset - extent - 1
            for count, taps, offset, extent in zip(counts, phases.shape[-2:], first, given[2:], strict=True)
        ]
        filters = np.ascontiguousarray(phases.reshape(-1, *phases.shape[3:]))
        window = [-offset for offset in first] + behind
        planes = self.builder_.emit(relax.op.nn.conv2d(data, relax.const(filters), padding=window))
        apart = self.builder_.emit(relax.op.reshape(planes, (batch, *strides, channels, *counts)))
        placed = self.builder_.emit(relax.op.permute_dims(apart, (0, 3, 4, 1, 5, 2)))
        return relax.op.reshape(placed, (batch, channels, *image))

    def _takes(self, call: relax.Call) -> bool:
        data, weight = call.args
        attributes, given, shape = call.attrs, static_shape(data), static_shape(call)
        if given is None or shape is None or 0 in (*given, *shape):
            return False
        phases = prod(int(step) for step in attributes.strides)
        return (
            isinstance(weight, tvm.ir.GenericConst)
            and (attributes.data_layout, attributes.kernel_layout) == ("NCHW", "IOHW")
            and {str(expr.ty.dtype) for expr in (data, weight, call)} == {"float32"}
            and all(int(step) == 1 for step in attributes.dilation)
            and int(attributes.groups) == 1
            and phases > 1
            and gain_of_phases(shape[1], phases, self.machine) >= LEAST_GAIN
        )
