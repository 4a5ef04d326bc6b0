"""A region: layers that run on VTA one after the other, as one program; tensors stay packed in DRAM between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.generate import add_plan
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.layouts import (
    bias_as_weights,
    largest_gemm_bias,
    pack_bias,
    pack_data,
    pack_weights,
    unpack_data,
)
from tvm_ext.backends.vta.codegen.plans import Plans
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm, Store
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.model.layers import IntegerLayer, Layer, Shape, merge_groups
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.errors import GraphError, VTAProgramError

# The largest power of two that int8 weights can be.
LARGEST_LOG_WEIGHT = 6

# Whatever is shifted out of 32 bits, the sign is left.
LARGEST_SHIFT = 31


@dataclass(frozen=True)
class PlacedLayer:
    """A layer in a program.

    Attributes
    ----------
    layer : Layer
    conv : Conv2d
        Its geometry in blocks.
    begin, end : int
        Its instructions: from ``begin`` up to ``end``.
    """

    layer: Layer
    conv: Conv2d
    begin: int
    end: int


@dataclass(frozen=True)
class RegionProgram:
    """A region's program.

    Attributes
    ----------
    program : Program
        A tensor's buffer has the tensor's name.
    layers : tuple of PlacedLayer
    inputs, outputs : tuple of str
        Tensors that it takes from and gives to the rest of the model.
    shapes : mapping
        Tensor to (N, C, H, W).
    """

    program: Program
    layers: tuple[PlacedLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape]

    def packed_shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of a tensor as it lies in DRAM: (N/B, C/c, H, W, B, c)."""
        return packed_shape(self.shapes[tensor], self.program.config)

    @property
    def unfolded(self) -> dict[str, tuple[int, int, int]]:
        """Inputs that are unfolded, and how."""
        return {placed.layer.data: placed.layer.unfold for placed in self.layers if placed.layer.unfold is not None}

    def steps(self) -> dict[str, int]:
        """Count the steps of the program: ``gemm`` (multiplying), ``reset`` and ``alu``."""
        found = {"gemm": 0, "reset": 0, "alu": 0}
        for instruction in self.program.instructions:
            if isinstance(instruction, Gemm | Alu):
                kind = "alu" if isinstance(instruction, Alu) else "reset" if instruction.reset_reg else "gemm"
                found[kind] += step_count(instruction)
        return found

    def run(self, tensors: Mapping[str, NDArray[np.int8]]) -> dict[str, NDArray[np.int8]]:
        """Run the program on the fast simulator.

        Parameters
        ----------
        tensors : mapping
            The inputs, int8 (N, C, H, W).

        Returns
        -------
        dict
            Every tensor that the region computes, int8 (N, C, H, W).
        """
        program, image = self.program, self.program.image
        dram = image.data.copy()
        for name in self.inputs:
            packed = pack_data(tensors[name], program.config).reshape(-1).view(np.uint8)
            at = image.regions[name].address - image.base
            dram[at : at + packed.size] = packed
        after = Simulator(program.config).run(program.words, dram, image.base).dram
        return {
            placed.layer.name: unpack_data(
                image.read(placed.layer.name, np.int8, self.packed_shape(placed.layer.name), after),
                placed.layer.out_shape,
            )
            for placed in self.layers
        }


def packed_shape(shape: Shape, config: VTAConfig) -> tuple[int, ...]:
    """Shape of a tensor (N, C, H, W) as it lies in DRAM: (N/B, C/c, H, W, B, c)."""
    n, c, h, w = shape
    return (-(-n // config.batch), -(-c // config.block), h, w, config.batch, config.block)


def geometry(layer: Layer, config: VTAConfig) -> Conv2d:
    """Return a layer's geometry in blocks.

    Raises
    ------
    VTAProgramError
        If VTA cannot run a layer of that form.
    """
    n, channels, height, width = layer.in_shape
    blocks = -(-channels // config.block)
    groups, out_blocks = blocks, blocks
    if layer.weights is not None:
        merged = merge_groups(layer.weights, layer.groups, config.block)
        groups, out_blocks = merged.groups, -(-layer.out_shape[1] // config.block)
    batches = -(-n // config.batch)
    return Conv2d(
        batches, blocks, out_blocks, height, width, layer.kernel, layer.stride, layer.padding, groups,
        layer.across, layer.kind == "conv2d_transpose", layer.output_padding,
    )  # fmt: skip


def build_region(
    layers: Sequence[IntegerLayer],
    inputs: Sequence[str],
    outputs: Sequence[str],
    config: VTAConfig,
    costs: CycleCosts,
    plans: Plans | None = None,
) -> RegionProgram:
    """Write the program of a region.

    Parameters
    ----------
    layers : sequence of IntegerLayer
        In the order in which they run.
    inputs, outputs : sequence of str
        Tensors that come from and go to the rest of the model.
    config : VTAConfig
    costs : CycleCosts
        Of the implementation that tiles are chosen for.
    plans : Plans, optional
        Where schedules come from; default ones where left out.

    Raises
    ------
    VTAProgramError
        If VTA cannot run a layer; the message names it.
    GraphError
        If a layer reads a tensor that nothing gives, or nothing reads an input.
    """
    shapes: dict[str, Shape] = {}
    for integer in layers:
        layer = integer.layer
        for name, shape in zip(layer.inputs, (layer.in_shape, layer.out_shape), strict=False):
            shapes.setdefault(name, shape)
        shapes[layer.name] = layer.out_shape
    image = MemoryImage()
    for name in inputs:
        if name not in shapes:
            raise GraphError(f"no layer of the region reads {name!r}")
    for name in [*inputs, *(integer.layer.name for integer in layers)]:
        image.allocate(name, int(np.prod(packed_shape(shapes[name], config))))
    builder = ProgramBuilder(config, image)
    plans = plans or Plans(config, costs)
    geometries = []
    for integer in layers:
        for name in integer.layer.inputs:
            if name not in image.regions:
                raise GraphError(f"layer {integer.layer.name!r} reads {name!r}, which the region does not have")
        try:
            geometries.append(_add_layer(builder, integer, plans))
        except VTAProgramError as error:
            raise VTAProgramError(f"layer {integer.layer.name!r}: {error}") from None
    program = builder.build()
    ends = _ends(program, [integer.layer.name for integer in layers])
    placed = [
        PlacedLayer(integer.layer, conv, begin, end)
        for integer, conv, begin, end in zip(layers, geometries, [0, *ends], ends, strict=False)
    ]
    return RegionProgram(program, tuple(placed), tuple(inputs), tuple(outputs), shapes)


def _add_layer(builder: ProgramBuilder, integer: IntegerLayer, plans: Plans) -> Conv2d:
    layer, image, config = integer.layer, builder.image, builder.config
    conv = geometry(layer, config)
    if integer.weights is None or integer.bias is None:
        _allocate_identity(image, 0, config)
        add_plan(plans.plan(conv, None), builder, [layer.data, _identity(0), layer.name])
        return conv
    buffers = [layer.data, f"weights of {layer.name}"]
    merged = merge_groups(integer.weights, layer.groups, config.block)
    image.allocate(buffers[-1], pack_weights(merged.weights, config))
    in_weights = int(np.abs(integer.bias.astype(np.int64)).max()) <= largest_gemm_bias(config)
    buffers.append(f"bias of {layer.name}")
    if in_weights:
        weights, constants = bias_as_weights(integer.bias, config)
        image.allocate(buffers[-1], weights)
        buffers.append(f"bias inputs of {layer.name}")
        image.allocate(buffers[-1], constants)
    else:
        image.allocate(buffers[-1], pack_bias(integer.bias, config))
    shift = min(integer.shift, LARGEST_SHIFT)
    epilogue = Epilogue(shift, integer.low, integer.high, "weights" if in_weights else "accumulators")
    if layer.residual is not None:
        residual = plan_residual(shift, integer.residual_shift)
        epilogue = replace(epilogue, residual=True, first_shift=residual.first_shift, residual_repeats=residual.repeats)
        _allocate_identity(image, residual.log_weight, config)
        buffers += [layer.residual, _identity(residual.log_weight)]
    add_plan(plans.plan(conv, epilogue), builder, [*buffers, layer.name])
    return conv


@dataclass(frozen=True)
class Residual:
    """How a tensor times a power of two is added to sums.

    Attributes
    ----------
    first_shift : int
        How far the sums are shifted right before.
    log_weight : int
        log2 of what GEMM multiplies it with.
    repeats : int
        How often that is added.
    """

    first_shift: int
    log_weight: int
    repeats: int


def plan_residual(shift: int, residual_shift: int) -> Residual:
    """Split ``residual_shift``: as far as weights reach it is part of them, the rest is shifted out before.

    Where all of ``shift`` can be done before, nothing is left to shift afterwards.
    """
    is_all = shift <= residual_shift <= shift + LARGEST_LOG_WEIGHT
    first = shift if is_all else min(max(residual_shift - LARGEST_LOG_WEIGHT, 0), shift)
    left = residual_shift - first
    return Residual(first, min(left, LARGEST_LOG_WEIGHT), 1 << max(left - LARGEST_LOG_WEIGHT, 0))


def _identity(log_weight: int) -> str:
    return f"identity times {1 << log_weight}"


def _allocate_identity(image: MemoryImage, log_weight: int, config: VTAConfig) -> None:
    if _identity(log_weight) not in image.regions:
        image.allocate(_identity(log_weight), np.eye(config.block, dtype=np.int8) << log_weight)


def _ends(program: Program, outputs: Sequence[str]) -> list[int]:
    """Find where each layer ends: after its last store. What follows the last one belongs to the last layer."""
    size = program.config.out_bytes
    first = [program.image.regions[name].address // size for name in outputs]
    last = [first[at] + program.image.regions[name].nbytes // size for at, name in enumerate(outputs)]
    ends = [0] * len(outputs)
    at = 0
    for index, instruction in enumerate(program.instructions):
        if isinstance(instruction, Store) and instruction.x_size:
            while not first[at] <= instruction.dram_base < last[at]:
                at += 1
            ends[at] = index + 1
    ends[-1] = len(program.instructions)
    return ends
