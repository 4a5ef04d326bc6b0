"""Compares what an instruction means with what carries it out, on random data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.system.cpu_features import FEATURES, are_known, features_of
from tvm_ext.system.host import processor_flags


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
        If they disagree, the row says nothing of how it is carried out, no code can be made of that, or target or
        machine lack what the row requires.
    """
    if instruction.emit is None:
        raise EmbeddingError(
            f"the row of {instruction.name} has no implementation to run; a code generator of its own makes it from "
            "the meaning"
        )
    if instruction.prepare is not None:
        instruction.prepare()
    _require_features(instruction, target)
    with _code_of(instruction.name, instruction.implementation):
        function = instruction.emit(_GLOBAL)
    check_functions(instruction.name, instruction.implementation, instruction.function(), function, target, seed)


def check_functions(
    name: str,
    implementation: str,
    meaning: PrimFunc,
    function: PrimFunc,
    target: tvm.target.Target,
    seed: int = 0,
    runs: bool = True,
) -> None:
    """Do the same with the two functions of an instruction.

    Parameters
    ----------
    name, implementation : str
        What messages call the instruction, and what carries it out.
    meaning, function : PrimFunc
    target : Target
    seed : int
    runs : bool
        Whether this machine runs code of the target; otherwise only operands are compared, and code is made.

    Raises
    ------
    EmbeddingError
        If they disagree, or no code can be made of the second one.
    """
    flow = instruction_dataflow(Instruction(name, lambda _scopes: meaning, implementation, None, (), _GLOBAL, 1))
    _require_operands(name, flow, function)
    functions = {"meaning": meaning, "implementation": function}
    module = tvm.IRModule(
        {
            entry: func.with_attr("global_symbol", entry).with_attr("tirx.noalias", True)
            for entry, func in functions.items()
        }
    )
    with _code_of(name, implementation):
        compiled = tvm.compile(module, target)
    if not runs:
        return
    rng = np.random.default_rng(seed)
    for draw in (random_values, extreme_values):
        operands = [draw(rng, access.shape, access.dtype) for access in flow.operands]
        results = [_run(compiled[entry], operands) for entry in functions]
        if np.issubdtype(results[0].dtype, np.integer):
            far = results[0] != results[1]
        else:
            sums = _run(compiled["meaning"], [np.abs(values) for values in operands])
            far = ~_near(results[0], results[1], sums, flow.macs // max(results[0].size, 1))
        if far.any():
            where = tuple(int(at[0]) for at in np.nonzero(far))
            raise EmbeddingError(
                f"the row of {name} is wrong: on random data its meaning gives {results[0][where]} at "
                f"{list(where)}, and {implementation} gives {results[1][where]}"
            )


def _run(function: Any, operands: Sequence[NDArray]) -> NDArray:
    """Run one of the functions; gives the result, which is the last operand."""
    tensors = [tvm.runtime.tensor(values) for values in operands]
    function(*tensors)
    result: NDArray = tensors[2].numpy()
    return result


_GLOBAL = ("global", "global", "global")


@contextmanager
def _code_of(name: str, implementation: str) -> Iterator[None]:
    """Say of which row no code can be made, with the first line of what TVM says, and what a colon leads to."""
    try:
        yield
    except Exception as error:  # TVM's errors have no common type
        lines = str(error).strip().splitlines() or [type(error).__name__]
        first = " ".join(line.strip() for line in lines[: 2 if lines[0].rstrip().endswith(":") else 1])
        raise EmbeddingError(f"no code can be made of the row of {name} ({implementation}): {first}") from error


def _near(first: NDArray, second: NDArray, sums: NDArray, terms: int) -> NDArray:
    """Compare element by element, as close as sums in another order and with fewer or more roundings are.

    Parameters
    ----------
    first, second : array
    sums : array
        Of the absolute values of all terms: what a rounding is relative to.
    terms : int
        Products that each element sums up.
    """
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}.get(str(first.dtype), 2.0**-24)
    first, second, sums = (values.astype("float64") for values in (first, second, sums))
    return np.abs(first - second) <= 2 * (terms + 1) * rounding * sums


def _require_features(instruction: Instruction, target: tvm.target.Target) -> None:
    """Refuse what the code generator would end the process over, or the processor."""
    names = [name for name in instruction.requires if name in FEATURES.values()]
    flags = processor_flags()
    here = [] if not are_known(flags) else [name for name in names if name not in features_of(flags)]
    for where, missing in (("the target", lacks(instruction.requires, target)), ("this machine", here)):
        if missing:
            raise EmbeddingError(f"{instruction.name} requires {', '.join(missing)}, which {where} does not have")


def lacks(requires: Sequence[str], target: tvm.target.Target) -> list[str]:
    """List the features that a target lacks; names that are no features of a CPU are not looked at.

    Raises
    ------
    EmbeddingError
        If one of these is a feature in another spelling: ``avx512_vnni``, as Linux has it, would require nothing.
    """
    spelt = {_plain(feature): feature for feature in FEATURES.values()}
    for name in requires:
        feature = spelt.get(_plain(name), name)
        if feature != name:
            raise EmbeddingError(f"{name!r} is no feature of a CPU as LLVM spells it; write {feature!r}")
    names = [name for name in requires if name in FEATURES.values()]
    offered = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)} if names else set()
    return [name for name in names if name not in offered]


def _plain(name: str) -> str:
    """Strip a name of what different spellings of it differ in."""
    return re.sub(r"[-_.]", "", name).lower()


def _require_operands(name: str, flow: Dataflow, function: Any) -> None:
    """Compare buffers of the implementation with those of the meaning."""
    if not isinstance(function, PrimFunc):
        raise EmbeddingError(
            f"the row of {name} gives {type(function).__name__} as implementation; expected a PrimFunc"
        )
    types = [param.ty for param in function.params if hasattr(param.ty, "shape")]
    found = [(tuple(int(extent) for extent in kind.shape), str(kind.dtype)) for kind in types]
    expected = [(tuple(access.shape), access.dtype) for access in flow.operands]
    if found != expected:
        said, done = (", ".join(f"{dtype}{list(shape)}" for shape, dtype in operands) for operands in (expected, found))
        raise EmbeddingError(
            f"the row of {name} is wrong: its meaning has the operands {said}, its implementation {done}"
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


def extreme_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> NDArray:
    """Draw the ends of an integer type, where sums saturate or wrap; of floats, values of several magnitudes."""
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        ends = [max(limits.min, -(1 << 20)), min(limits.max, 1 << 20)]
        return rng.choice(ends, shape).astype(dtype)
    return (random_values(rng, shape, "float32") * np.exp2(rng.integers(-3, 4, shape))).astype(
        random_values(rng, (1,), dtype).dtype
    )
