"""Programs of embedded layers, and what they cost: cycles of VTA, and of the host that stores operands anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.embedded import EmbeddedLayer
from tvm_ext.backends.vta.codegen.generate import add_plan
from tvm_ext.backends.vta.codegen.plans import default_plan
from tvm_ext.backends.vta.codegen.tile_choice import choose_tile, estimate_cycles, fit_tile
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder, read_outputs
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import CycleCosts


def embedded_program(
    layer: EmbeddedLayer,
    config: VTAConfig,
    costs: CycleCosts,
    data: NDArray,
    weights: NDArray,
    epilogue: Epilogue,
    direct: bool = False,
) -> Program:
    """Make the program of a layer, its operands stored.

    Parameters
    ----------
    layer : EmbeddedLayer
    config : VTAConfig
    costs : CycleCosts
    data, weights : NDArray[np.int8]
        Of the operator.
    epilogue : Epilogue
        Without bias and residual.
    direct : bool
        Whether VTA stores the operator's own result; the layer has a :meth:`EmbeddedLayer.direct_order`.

    Raises
    ------
    VTAProgramError
        If no schedule of it fits the memories.
    """
    image = MemoryImage()
    values = (data, weights)
    for number, name in enumerate(("data", "weights")):
        image.allocate(name, layer.pack(number, values[number if layer.data == 0 else 1 - number]))
    image.allocate("out", layer.elements(2))
    builder = ProgramBuilder(config, image)
    order = layer.direct_order() if direct else None
    add_plan(default_plan(config, costs, layer.conv, epilogue, order), builder, ["data", "weights", "out"])
    return builder.build()


def run_embedded(
    program: Program, layer: EmbeddedLayer, direct: bool = False
) -> tuple[NDArray[np.int8], dict[str, int]]:
    """Run a program on the simulator; gives the operator's result and how many steps of each unit there were."""
    result = Simulator(program.config).run(program.words, program.image.data, program.image.base)
    if direct:
        return read_outputs(program, "out", layer.strategy.operands[2].access.shape, result.dram), result.steps
    return layer.unpack(read_outputs(program, "out", layer.shapes[2], result.dram)), result.steps


def moved_values(layer: EmbeddedLayer, direct: bool = False) -> int:
    """Values that the host stores, and reads back unless VTA stores the operator's own result (``direct``).

    Weights are stored beforehand.
    """
    return layer.elements(layer.data) + (0 if direct else layer.elements(2))


def transform_cycles(
    layer: EmbeddedLayer, costs: CycleCosts, host: HostSpeed | None = None, direct: bool = False
) -> float:
    """Cycles of VTA's clock in which the host stores data and reads the result back; weights are stored beforehand.

    ``direct``: VTA stores the operator's own result.
    """
    seconds = moved_values(layer, direct) / (host or HostSpeed()).conversions
    return seconds * costs.clock_mhz * 1e6


def estimated_cycles(layer: EmbeddedLayer, config: VTAConfig, costs: CycleCosts) -> float:
    """Estimate what a layer takes: its best tile, as the choice of tiles sees it, and the host.

    Where VTA can store the operator's own result it does so, in the same cycles.
    """
    tile = choose_tile(layer.conv, config, costs, False, False)
    fitted = fit_tile(config, layer.conv, tile, False, False)
    direct = layer.direct_order() is not None
    return estimate_cycles(layer.conv, fitted, config, costs) + transform_cycles(layer, costs, direct=direct)
