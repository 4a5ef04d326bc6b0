"""Writes a model anew with regions on VTA: the rest as it was, and at the borders what packs and unpacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.calibrate import Substitution
from tvm_ext.backends.vta.model.executable import Port, link_program
from tvm_ext.backends.vta.model.layers import IntegerNetwork, Shape
from tvm_ext.backends.vta.model.region import RegionProgram, packed_shape
from tvm_ext.backends.vta.model.relax_layers import bindings_of, identifiers
from tvm_ext.relax_utils import static_shape


def with_regions(floats: tvm.IRModule, regions: Sequence[RegionProgram], network: IntegerNetwork) -> tvm.IRModule:
    """Write ``main`` anew, with calls of programs where layers were."""
    mod = tvm.IRModule({variable: func for variable, func in floats.functions.items() if variable.name_hint != "main"})
    calls = []
    for number, region in enumerate(regions):
        inputs, outputs = (
            [Port(name, region.packed_shape(name)) for name in names] for names in (region.inputs, region.outputs)
        )
        calls.append(link_program(mod, f"vta_region{number}", region.program, inputs, outputs))
    writer = _Writer(floats["main"], regions, calls, network, relax.BlockBuilder(mod))
    return writer.write()


class _Writer:
    """Emits the bindings that stay, and each region as soon as something needs it."""

    def __init__(
        self,
        main: relax.Function,
        regions: Sequence[RegionProgram],
        calls: Sequence[tvm.ir.GlobalVar],
        network: IntegerNetwork,
        builder: relax.BlockBuilder,
    ) -> None:
        self.main, self.regions, self.calls, self.network, self.builder = main, regions, calls, network, builder
        self.bindings = {binding.var: binding.value for binding in bindings_of(main)}
        self.region_of = {placed.layer.name: at for at, region in enumerate(regions) for placed in region.layers}
        self.covered = {name for region in regions for placed in region.layers for name in placed.layer.covers}
        self.name_of = identifiers(main)
        self.variable = {name: variable for variable, name in self.name_of.items()}
        self.values: dict[relax.Var, relax.Expr] = {parameter: parameter for parameter in main.params}
        self.packed: dict[str, relax.Expr] = {}
        self.substitution = Substitution(self.values)

    def write(self) -> tvm.IRModule:
        builder = self.builder
        attributes = dict(self.main.attrs) if self.main.attrs else {}
        with builder.function("main", list(self.main.params), attributes):
            with builder.dataflow():
                for variable in self.bindings:
                    if self.name_of[variable] not in self.covered:
                        self.value(variable)
                for variable in _variables_of(self.main.body.body):
                    self.value(variable)
                output = builder.emit_output(self.substitution.visit_expr(self.main.body.body))
            builder.emit_func_output(output)
        return builder.get()

    def value(self, variable: relax.Var) -> relax.Expr:
        """Return a tensor in floats, emitted if it is not there yet."""
        if variable not in self.values:
            if self.name_of[variable] in self.region_of:
                self.values[variable] = self._unpacked(variable)
            else:
                for operand in _variables_of(self.bindings[variable]):
                    self.value(operand)
                self.values[variable] = self.builder.emit(self.substitution.visit_expr(self.bindings[variable]))
        return self.values[variable]

    def pack(self, name: str) -> relax.Expr:
        """Return a tensor in integers, packed, emitted if it is not there yet."""
        if name not in self.packed and name in self.region_of:
            self._call(self.region_of[name])
        if name not in self.packed:
            region = next(region for region in self.regions if name in region.inputs)
            value = self.value(self.variable[name])
            unfold = region.unfolded.get(name)
            self.packed[name] = self._quantized(name, value, region.shapes[name], unfold)
        return self.packed[name]

    def _call(self, at: int) -> None:
        region = self.regions[at]
        call = relax.Call(self.calls[at], [self.pack(name) for name in region.inputs])
        result = self.builder.emit(call)
        for number, name in enumerate(region.outputs):
            many = len(region.outputs) > 1
            self.packed[name] = self.builder.emit(relax.TupleGetItem(result, number)) if many else result

    def _quantized(self, name: str, value: relax.Expr, form: Shape, unfold: tuple[int, int, int] | None) -> relax.Expr:
        config, emit, op = self.config, self.builder.emit, relax.op
        shape = static_shape(value) or ()
        scaled = emit(op.multiply(value, relax.const(self.network.factors(name, len(shape)))))
        rounded = emit(op.floor(emit(op.add(scaled, relax.const(np.float32(0.5))))))
        whole = emit(op.astype(emit(op.clip(rounded, -128, 127)), "int8"))
        if len(shape) != 4:
            n, channels, _, width = form
            rows = emit(op.reshape(whole, (-1, channels)))
            missing = n * width - int(np.prod(shape[:-1]))
            if missing:
                rows = emit(op.nn.pad(rows, [0, missing, 0, 0]))
            whole = emit(op.permute_dims(emit(op.reshape(rows, (width, n, channels, 1))), [1, 2, 3, 0]))
        n, channels, height, width = form
        if unfold is not None:
            whole = self._unfolded(whole, unfold, width)
        batches, blocks, _, _, batch, block = packed_shape(form, config)
        pads = (batches * batch - n, blocks * block - channels)
        if any(pads):
            whole = emit(op.nn.pad(whole, [0, pads[0], 0, pads[1], 0, 0, 0, 0]))
        split = emit(op.reshape(whole, (batches, batch, blocks, block, height, width)))
        return emit(op.permute_dims(split, [0, 2, 4, 5, 1, 3]))

    def _unfolded(self, value: relax.Expr, unfold: tuple[int, int, int], width: int) -> relax.Expr:
        """Emit what :func:`tvm_ext.backends.vta.model.unfold.unfold_columns` does."""
        emit, op = self.builder.emit, relax.op
        kernel, stride, padding = unfold
        padded = emit(op.nn.pad(value, [0, 0, 0, 0, 0, 0, padding, padding])) if padding else value
        ends = [place + (width - 1) * stride + 1 for place in range(kernel)]
        places = [emit(op.strided_slice(padded, [3], [place], [end], [stride])) for place, end in enumerate(ends)]
        return emit(op.concat(places, axis=1))

    def _unpacked(self, variable: relax.Var) -> relax.Expr:
        emit, op, name = self.builder.emit, relax.op, self.name_of[variable]
        packed = self.pack(name)
        form = self.regions[self.region_of[name]].shapes[name]
        n, channels, height, width = form
        batches, blocks, _, _, batch, block = packed_shape(form, self.config)
        joined = emit(op.permute_dims(packed, [0, 4, 1, 5, 2, 3]))
        whole = emit(op.reshape(joined, (batches * batch, blocks * block, height, width)))
        if (batches * batch, blocks * block) != (n, channels):
            whole = emit(op.strided_slice(whole, [0, 1], [0, 0], [n, channels]))
        shape = static_shape(variable) or ()
        if len(shape) != 4:
            rows = emit(op.reshape(emit(op.permute_dims(whole, [3, 0, 1, 2])), (width * n, channels)))
            count = int(np.prod(shape[:-1]))
            if count != width * n:
                rows = emit(op.strided_slice(rows, [0], [0], [count]))
            whole = emit(op.reshape(rows, shape))
        inverse = relax.const(1 / self.network.factors(name, len(shape)))
        return emit(op.multiply(emit(op.astype(whole, "float32")), inverse))

    @property
    def config(self) -> VTAConfig:
        """The accelerator's configuration."""
        return self.regions[0].program.config


def _variables_of(expr: Any) -> list[relax.Var]:
    found: list[relax.Var] = []
    relax.analysis.post_order_visit(expr, lambda node: found.append(node) if isinstance(node, relax.Var) else None)
    return found
