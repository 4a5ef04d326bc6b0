"""The instruction of VTA: one step of the matrix unit of its configuration."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from tvm_ext.embedding.choice import Offer
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError, VTAProgramError
from tvm_ext.schedules.instructions.rows import vta_gemm


def instructions(target: tvm.target.Target) -> Sequence[Offer]:
    """Return the step of the matrix unit; cost is VTA's estimated cycles and those of the host that stores data."""
    from tvm_ext.backends.vta.codegen.embedded import embedded_layer
    from tvm_ext.backends.vta.codegen.embedded_program import estimated_cycles
    from tvm_ext.backends.vta.config import config_of_target
    from tvm_ext.backends.vta.timing.costs import costs_of_config

    config = config_of_target(target)
    costs = costs_of_config(config)

    def cost(found: Strategy) -> float:
        try:
            return estimated_cycles(embedded_layer(found, config), config, costs)
        except VTAProgramError as error:
            raise EmbeddingError(str(error)) from error

    return [Offer(vta_gemm(config.batch, config.block), cost)]
