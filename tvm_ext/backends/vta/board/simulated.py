"""A device without hardware: memory of this process, programs on the simulator. For trying what drives a board."""

from __future__ import annotations

import numpy as np

from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.board.device import BoardDevice
from tvm_ext.backends.vta.board.memory import RangeMemory
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.board.relocation import relocate
from tvm_ext.backends.vta.config import INSTRUCTION_BYTES, VTAConfig
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm, decode_program
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTADeviceError, VTAProgramError

MEMORY_BYTES = 64 << 20
MEMORY_ADDRESS = 0x10000000
FEW_STEPS = 1 << 12
"""Up to here the reference simulator is done before the fast one is compiled."""


class SimulatedControl:
    """Runs a stream at once, when it is started.

    Parameters
    ----------
    config : VTAConfig
    memory : RangeMemory
        All that the accelerator can reach.
    """

    address_offset = 0

    def __init__(self, config: VTAConfig, memory: RangeMemory) -> None:
        self.config, self._memory = config, memory

    def start(self, address: int, count: int, bases: BaseAddresses) -> None:
        """Run ``count`` instructions from a physical address; raises VTADeviceError if the simulator refuses them."""
        memory, config = self._memory, self.config
        start = address - memory.address
        words = memory.contents[start : start + count * INSTRUCTION_BYTES].view(np.uint64).reshape(-1, 2)
        try:
            steps = sum(step_count(x) for x in decode_program(words, config) if isinstance(x, Gemm | Alu))
            simulator = ReferenceSimulator(config) if steps <= FEW_STEPS else Simulator(config)
            result = simulator.run(relocate(words, config, bases), memory.contents, memory.address)
        except VTAProgramError as error:
            raise VTADeviceError(f"simulated board of {config.name}: {error}") from None
        memory.contents[:] = result.dram

    def finished(self) -> bool:
        """Tell that the stream was executed."""
        return True


def simulated_device(config: VTAConfig, nbytes: int = MEMORY_BYTES) -> BoardDevice:
    """Return a device with ``nbytes`` of memory that behaves as the configuration says."""
    memory = RangeMemory(np.zeros(nbytes, np.uint8), MEMORY_ADDRESS)
    return BoardDevice(config, SimulatedControl(config, memory), memory)
