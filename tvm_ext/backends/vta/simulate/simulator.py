"""The fast simulator: runs instruction streams at the speed of compiled code, with the results of the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.faults import FIELDS, Fault, Refusal
from tvm_ext.backends.vta.isa.instructions import Words, as_words
from tvm_ext.backends.vta.memory import SimulationResult, check_image
from tvm_ext.backends.vta.simulate.base import MAX_STEPS, StreamSimulator


@lru_cache(maxsize=32)
def _compiled(config: VTAConfig) -> Any:
    """Compile the interpreter of a configuration for this machine; needs LLVM, which is part of TVM, and no more."""
    import tvm

    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.backends.vta.simulate.kernel import interpreter

    return tvm.compile(tvm.IRModule({"vta_run": interpreter(config)}), native_target())["vta_run"]


def interpreter_config(config: VTAConfig) -> VTAConfig:
    """Return the configuration whose interpreter is used: boards of the same shape and encoding share one."""
    return replace(config, target="sim", hw_ver="0.0.1" if config.isa == 1 else "0.0.2")


class Simulator(StreamSimulator):
    """One accelerator, simulated by a TVM PrimFunc that is compiled when it is first needed (about a second)."""

    def simulate(
        self, words: Words, dram: NDArray[np.uint8], base: int = 0x1000, max_steps: int = MAX_STEPS
    ) -> SimulationResult | Refusal:
        """Run the compiled interpreter."""
        import tvm

        from tvm_ext.backends.vta.simulate.expressions import Status

        words = as_words(words)
        check_image(dram, base)
        if not len(words):
            return Refusal(Fault.FINISH, 0, "opcode")
        config, depths = self.config, self.config.depths
        image = tvm.runtime.tensor(np.ascontiguousarray(dram))
        status = tvm.runtime.tensor(np.zeros(Status.SIZE, np.int64))
        _compiled(interpreter_config(config))(
            tvm.runtime.tensor(words.view(np.int64)),
            image,
            tvm.runtime.tensor(np.array([base, max_steps], np.int64)),
            tvm.runtime.tensor(np.zeros((3, len(words)), np.int64)),
            tvm.runtime.tensor(np.zeros(depths["uop"], np.uint32)),
            tvm.runtime.tensor(np.zeros(depths["inp"] * config.inp_bytes, np.int8)),
            tvm.runtime.tensor(np.zeros(depths["wgt"] * config.wgt_bytes, np.int8)),
            tvm.runtime.tensor(np.zeros(depths["acc"] * config.acc_bytes // 4, np.uint32)),
            status,
        )
        report: list[int] = status.numpy().tolist()
        if report[Status.FAULT]:
            fault, instruction, field, value, uop = report[: Status.UOP + 1]
            return Refusal(Fault(fault), instruction, FIELDS[field], value, uop)
        memories = ("uop", "wgt", "inp", "acc", "out", "acc_8bit")
        moved = dict(zip(memories, report[Status.UOP_BYTES : Status.TOKENS], strict=True))
        left = tuple(report[Status.TOKENS : Status.HEADS])
        steps = {"gemm": report[Status.GEMM], "reset": report[Status.RESET], "alu": report[Status.ALU]}
        return SimulationResult(image.numpy(), steps, moved, left)  # type: ignore[arg-type]
