"""Compares what an instruction means with what carries it out, on random data."""

from __future__ import annotations

import numpy as np
import tvm
from numpy.typing import NDArray

from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction


def check_instruction(instruction: Instruction, target: tvm.target.Target, seed: int = 0) -> None:
    """Run meaning and implementation of an instruction on this machine, on data of the whole range of its types.

    Parameters
    ----------
    instruction : Instruction
    target : Target
        A CPU that has the instruction, and that is this machine.
    seed : int

    Raises
    ------
    EmbeddingError
        If they disagree, or the row says nothing of how it is carried out.
    """
    if instruction.emit is None:
        raise EmbeddingError(
            f"the row of {instruction.name} has no implementation to run; a code generator of its own makes it from "
            "the meaning"
        )
    if instruction.prepare is not None:
        instruction.prepare()
    scopes = ("global", "global", "global")
    functions = {"meaning": instruction.function(), "implementation": instruction.emit(scopes)}
    module = tvm.IRModule(
        {
            name: func.with_attr("global_symbol", name).with_attr("tirx.noalias", True)
            for name, func in functions.items()
        }
    )
    compiled = tvm.compile(module, target)
    flow = instruction_dataflow(instruction)
    rng = np.random.default_rng(seed)
    operands = [random_values(rng, access.shape, access.dtype) for access in flow.operands]
    results = []
    for name in functions:
        tensors = [tvm.runtime.tensor(values) for values in operands]
        compiled[name](*tensors)
        results.append(tensors[2].numpy())
    # One rounding instead of two is what a fused multiply-add is for.
    exact = np.issubdtype(results[0].dtype, np.integer)
    same = np.array_equal(*results) if exact else np.allclose(results[0], results[1], rtol=1e-5, atol=1e-6)
    if not same:
        where = tuple(int(at[0]) for at in np.nonzero(results[0] != results[1]))
        raise EmbeddingError(
            f"the row of {instruction.name} is wrong: on random data its meaning gives {results[0][where]} at "
            f"{list(where)}, and {instruction.implementation} gives {results[1][where]}"
        )


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> NDArray:
    """Draw values of a type, integers from all of its range (of 32 bits, from what sums of small ones reach)."""
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        low, high = max(limits.min, -(1 << 20)), min(limits.max, 1 << 20)
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    values = rng.standard_normal(shape).astype("float32")
    if dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(dtype)
