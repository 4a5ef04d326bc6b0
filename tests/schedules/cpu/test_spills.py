"""Innermost loops of convolutions for x86 keep their sums and what they load in registers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.artifact.shared_object import host_modules

LABEL, BRANCH = re.compile(r"(\.LBB\w+):"), re.compile(r"\s+j\w+\s+(\.LBB\w+)")
MULTIPLY = re.compile(r"\s+vp(?:dpbusd|maddwd)\s")
MULTIPLY_FLOATS = re.compile(r"\s+(?:vfmadd\w+ps|mulps)\s")
SPILL = re.compile(r"\s+v?mov\w+\s+%[xyz]mm\d+, \d*\(%rsp\)")
"""A vector register written to the stack at a fixed place."""

LAYERS = {  # channels, rows and columns, output channels, taps a row, stride
    "picture, stride 2": (3, 64, 32, 3, 2),
    "picture of one channel": (1, 33, 17, 3, 1),
    "window": (64, 14, 64, 3, 1),
    "window, stride 2, odd channels": (33, 17, 65, 3, 2),
    "pointwise": (128, 14, 64, 1, 1),
}

FLOAT_LAYERS = {
    "one block of channels": (64, 60, 8, 1, 1),
    "one block, 11 columns": (64, 33, 8, 3, 1),
    "three blocks": (144, 56, 24, 1, 1),
    "five blocks": (40, 33, 40, 3, 1),
    "eight blocks": (64, 60, 64, 3, 1),
    "stride 2": (64, 56, 64, 3, 2),
}


def innermost(assembly: str) -> Iterator[list[str]]:
    """Walk the loops in which no other loop lies: from a label to a branch back to it."""
    places: dict[str, int] = {}
    lines, loops = assembly.splitlines(), []
    for number, line in enumerate(lines):
        if label := LABEL.match(line):
            places[label[1]] = number
        elif (branch := BRANCH.match(line)) and branch[1] in places:
            loops.append((places[branch[1]], number))
    for begin, end in loops:
        if not any(begin <= first and last <= end for first, last in loops if (first, last) != (begin, end)):
            yield lines[begin : end + 1]


def code(layer: tuple[int, ...], cpu: str, dtype: str = "uint8") -> str:
    channels, size, out, taps, stride = layer
    of_weight, of_result = ("int8", "int32") if dtype == "uint8" else (dtype, dtype)
    weight = np.random.default_rng(1).integers(-128, 128, (out, channels, taps, taps)).astype(of_weight)
    module = graph(
        lambda builder, x: builder.emit(
            relax.op.nn.conv2d(x, relax.const(weight), stride, taps // 2, out_dtype=of_result)
        ),
        [((1, channels, size, size), dtype)],
    )
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    executable = tvm.compile(module, target, relax_pipeline=relax.get_pipeline("tvm_ext", winograd=False))
    return "\n".join(part.inspect_source("asm") for part in host_modules(executable.mod) if part.kind == "llvm")


CASES = [(layer, cpu) for cpu in ("znver5", "icelake-server") for layer in LAYERS]


@pytest.mark.parametrize(("layer", "cpu"), CASES)
def test_nothing_is_written_to_the_stack(layer: str, cpu: str) -> None:
    assert most_spills(code(LAYERS[layer], cpu), MULTIPLY) == 0


@pytest.mark.parametrize("cpu", ["haswell", "znver3", "x86-64-v2", "icelake-server"])
@pytest.mark.parametrize("layer", FLOAT_LAYERS)
def test_little_of_floats_is_written_to_the_stack(layer: str, cpu: str) -> None:
    # LLVM writes out the taps of a row: with SSE4 it may keep some of the pixels that several of them meet.
    limit = 0.1 if cpu == "x86-64-v2" else 0
    assert most_spills(code(FLOAT_LAYERS[layer], cpu, "float32"), MULTIPLY_FLOATS) <= limit


def most_spills(assembly: str, multiply: re.Pattern[str]) -> float:
    """Vectors written to the stack for one multiplication, in the worst of the loops that hold eight or more."""
    loops = [(loop, sum(map(bool, map(multiply.match, loop)))) for loop in innermost(assembly)]
    return max(sum(map(bool, map(SPILL.match, loop))) / count for loop, count in loops if count >= 8)
