"""What the simulators have in common: what they model, and how they refuse a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.checks import refusal_error
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.faults import Refusal
from tvm_ext.backends.vta.isa.instructions import Words, as_words
from tvm_ext.backends.vta.memory import SimulationResult
from tvm_ext.errors import VTAConfigError

MAX_STEPS = 1 << 32


def require_byte_operands(config: VTAConfig) -> None:
    """Refuse configurations that are legal, but that the simulators do not model.

    Raises
    ------
    VTAConfigError
        If activations and weights are not 8 bits wide, or accumulators not 32.
    """
    for key, wanted in (("log_inp_width", 3), ("log_wgt_width", 3), ("log_acc_width", 5)):
        if (value := getattr(config, key)) != wanted:
            raise VTAConfigError(f"{key.upper()} is {value}; the simulators model {wanted} only")


class StreamSimulator(ABC):
    """One accelerator.

    Parameters
    ----------
    config : VTAConfig
    """

    def __init__(self, config: VTAConfig) -> None:
        require_byte_operands(config)
        self.config = config

    def run(
        self, words: Words, dram: NDArray[np.uint8], base: int = 0x1000, max_steps: int = MAX_STEPS
    ) -> SimulationResult:
        """Run a stream on a copy of a memory image.

        Parameters
        ----------
        words : NDArray[np.uint64]
            Instructions, [instructions, 2].
        dram : NDArray[np.uint8]
            Memory image.
        base : int
            Address of its first byte.
        max_steps : int
            Most steps of GEMM and ALU that the stream may ask for.

        Raises
        ------
        VTAProgramError
            If an instruction is illegal or leaves a memory, or modules wait for each other for ever.
        """
        result = self.simulate(words, dram, base, max_steps)
        if isinstance(result, Refusal):
            raise refusal_error(result, as_words(words).tolist(), self.config, (base, dram.size), max_steps)
        return result

    @abstractmethod
    def simulate(
        self, words: Words, dram: NDArray[np.uint8], base: int = 0x1000, max_steps: int = MAX_STEPS
    ) -> SimulationResult | Refusal:
        """Do as :meth:`run`, but return a refusal instead of raising it."""
