"""Runs a stream on both simulators and compares everything that they report."""

from __future__ import annotations

import numpy as np

from tests.vta.random_programs import RandomProgram
from tvm_ext.backends.vta.isa.faults import Refusal
from tvm_ext.backends.vta.memory import SimulationResult
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.simulator import Simulator

MAX_STEPS = 20_000


def run_both(program: RandomProgram) -> SimulationResult | Refusal:
    """Return what both simulators agree on."""
    results = [
        simulator(program.config).simulate(program.words, program.dram, program.base, MAX_STEPS)
        for simulator in (ReferenceSimulator, Simulator)
    ]
    reference, compiled = results
    if isinstance(reference, Refusal) or isinstance(compiled, Refusal):
        assert reference == compiled
        return reference
    np.testing.assert_array_equal(compiled.dram, reference.dram)
    assert compiled.steps == reference.steps
    assert compiled.bytes_moved == reference.bytes_moved
    assert compiled.tokens_left == reference.tokens_left
    return reference
