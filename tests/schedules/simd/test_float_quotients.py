"""Quotients of integers by floats are those of Python's integers, next to every multiple and at every end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.schedules.kernels import AARCH64, TARGETS

DIVISIONS = {"divide": op.divide, "floor_divide": op.floor_divide, "mod": op.mod, "floor_mod": op.floor_mod}
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
X86 = ("x86-64-v2", "haswell", "skylake-avx512")


def compiled(operator: Callable, dtype: str, *shapes: tuple[int, ...], target: tvm.target.Target) -> Any:
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in zip("xy", shapes, strict=True))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(operator(x, y))
        builder.emit_func_output(result)
    return tvm.compile(builder.get(), target, relax_pipeline="tvm_ext")


def run(executable: Any, *inputs: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def expected(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divide in 64 bits; what is divided by 0 stays, and leaves no rest."""
    a, b = np.broadcast_arrays(x.astype("int64"), y.astype("int64"))
    divisor = np.where(b == 0, 1, b)
    floor, rest = np.divmod(a, divisor)
    truncated = floor + ((rest != 0) & ((a < 0) != (divisor < 0)))
    values = {"divide": truncated, "floor_divide": floor, "mod": a - truncated * divisor, "floor_mod": rest}
    return values[name].astype(x.dtype)


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Take dividends next to multiples of divisors of all sizes, and the ends of the type."""
    info, generator = np.iinfo(dtype), np.random.default_rng(0)
    ends = np.array([info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2, 3], "int64")
    ends = np.concatenate([ends, -ends[-3:]])
    sizes = (2.0 ** generator.uniform(0, info.bits, 4000)).astype("int64") * generator.choice([-1, 1], 4000)
    divisors = np.concatenate([sizes, ends, generator.choice(ends, 4000)])
    divisors = divisors[(info.min <= divisors) & (divisors <= info.max)]
    largest = info.max // np.maximum(np.abs(divisors), 1)
    quotients = (largest * generator.uniform(-1, 1, len(divisors))).astype("int64")
    near = quotients * divisors + generator.integers(-1, 2, len(divisors))
    dividends = np.concatenate([near, generator.choice(ends, len(divisors))])
    divisors = np.tile(divisors, 2)
    held = (info.min <= dividends) & (dividends <= info.max)
    return dividends[held].astype(dtype), divisors[held].astype(dtype)


@pytest.mark.parametrize("target", ["native", "avx2", "sse4"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", DIVISIONS)
def test_quotients_next_to_multiples(name: str, dtype: str, target: str) -> None:
    x, y = operands(dtype)
    executable = compiled(DIVISIONS[name], dtype, x.shape, y.shape, target=TARGETS[target])
    np.testing.assert_array_equal(run(executable, x, y), expected(name, x, y))


@pytest.mark.parametrize("shapes", [((9, 67), (67,)), ((5, 13), (5, 1)), ((33,), (1,)), ((3, 129), (1, 129))], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_rows_that_end_in_a_part_of_a_vector(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    generator = np.random.default_rng(1)
    x, y = generator.integers(-(2**31), 2**31, shapes[0], "int32"), generator.integers(-4, 5, shapes[1], "int32")
    executable = compiled(DIVISIONS[name], "int32", *shapes, target=TARGETS["avx2"])
    np.testing.assert_array_equal(run(executable, x, y), expected(name, x, y))


def kernel(executable: Any) -> str:
    """Assembly of the only kernel."""
    found = re.search(r"^\w+_compute_:.*?^\.Lfunc_end", executable.mod.imports[0].inspect_source("asm"), re.S | re.M)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("mcpu", X86)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", DIVISIONS)
def test_x86_divides_vectors_and_no_integers(name: str, dtype: str, mcpu: str) -> None:
    """Rows of 67 end in three elements, for which a vector has a mask; tasks would divide a loop by their number."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    assembly = kernel(compiled(DIVISIONS[name], dtype, (2000, 67), (67,), target=target))
    assert re.search(rf"\sv?divp{'d' if '32' in dtype else 's'}\s", assembly)
    assert not re.search(r"\si?div[bwlq]?\s", assembly)
    assert not re.search(r"\b(floor|trunc)f?@", assembly)


def test_other_machines_and_wider_integers_divide_integers() -> None:
    assert "sdiv" in kernel(compiled(op.divide, "int32", (4096,), (4096,), target=AARCH64))
    assert re.search(r"\sidivq\s", kernel(compiled(op.divide, "int64", (4096,), (4096,), target=TARGETS["avx2"])))
