"""A region: layers that run on VTA one after the other, as one program; tensors stay packed in DRAM between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.errors import GraphError, VTAProgramError
from tvm_ext.vta.checks import step_count
from tvm_ext.vta.config import VTAConfig
from tvm_ext.vta.costs import CycleCosts
from tvm_ext.vta.isa import Alu, Gemm, Store
from tvm_ext.vta.layers import IntegerLayer, Layer, Shape, merge_groups
from tvm_ext.vta.layouts import bias_as_weights, largest_gemm_bias, pack_bias, pack_data, pack_weights, unpack_data
from tvm_ext.vta.memory import MemoryImage
from tvm_ext.vta.operators import Requantize, Residual, conv2d
from tvm_ext.vta.pooling import max_pool2d
from tvm_ext.vta.program import Program, ProgramBuilder
from tvm_ext.vta.simulator import Simulator
from tvm_ext.vta.tile_choice import choose_tile
from tvm_ext.vta.tiles import Conv2d

# The largest power of two that int8 weights can be.
LARGEST_LOG_WEIGHT = 6


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
    geometries = []
    for integer in layers:
        for name in integer.layer.inputs:
            if name not in image.regions:
                raise GraphError(f"layer {integer.layer.name!r} reads {name!r}, which the region does not have")
        try:
            geometries.append(_add_layer(builder, integer, config, costs))
        except VTAProgramError as error:
            raise VTAProgramError(f"layer {integer.layer.name!r}: {error}") from None
    program = builder.build()
    ends = _ends(program, [integer.layer.name for integer in layers])
    placed = [
        PlacedLayer(integer.layer, conv, begin, end)
        for integer, conv, begin, end in zip(layers, geometries, [0, *ends], ends, strict=False)
    ]
    return RegionProgram(program, tuple(placed), tuple(inputs), tuple(outputs), shapes)


def _add_layer(builder: ProgramBuilder, integer: IntegerLayer, config: VTAConfig, costs: CycleCosts) -> Conv2d:
    layer, image = integer.layer, builder.image
    conv = geometry(layer, config)
    if integer.weights is None or integer.bias is None:
        _allocate_identity(image, 0, config)
        max_pool2d(builder, conv, layer.data, _identity(0), layer.name)
        return conv
    names = {part: f"{part} of {layer.name}" for part in ("weights", "bias", "bias inputs")}
    merged = merge_groups(integer.weights, layer.groups, config.block)
    image.allocate(names["weights"], pack_weights(merged.weights, config))
    in_weights = int(np.abs(integer.bias.astype(np.int64)).max()) <= largest_gemm_bias(config)
    if in_weights:
        weights, constants = bias_as_weights(integer.bias, config)
        image.allocate(names["bias"], weights)
        image.allocate(names["bias inputs"], constants)
    else:
        image.allocate(names["bias"], pack_bias(integer.bias, config))
    residual = None
    if layer.residual is not None:
        residual = plan_residual(layer.residual, integer.shift, integer.residual_shift)
        _allocate_identity(image, min(integer.residual_shift - residual.first_shift, LARGEST_LOG_WEIGHT), config)
    tile = choose_tile(conv, config, costs, in_weights, residual is not None)
    conv2d(
        builder, conv, tile, Requantize(integer.shift, integer.low, integer.high),
        layer.data, names["weights"], names["bias"], layer.name,
        bias_inputs=names["bias inputs"] if in_weights else None, residual=residual,
    )  # fmt: skip
    return conv


def plan_residual(data: str, shift: int, residual_shift: int) -> Residual:
    """Split ``residual_shift``: as far as weights reach it is part of them, the rest is shifted out before."""
    first = min(max(residual_shift - LARGEST_LOG_WEIGHT, 0), shift)
    left = residual_shift - first
    return Residual(data, _identity(min(left, LARGEST_LOG_WEIGHT)), first, 1 << max(left - LARGEST_LOG_WEIGHT, 0))


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
