"""Innermost loops of integer convolutions for x86 keep their sums and what they load in registers."""

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
SPILL = re.compile(r"\s+v\w+\s+%[xyz]mm\d+, \d*\(%rsp\)")
"""A vector register written to the stack at a fixed place."""

LAYERS = {  # channels, rows and columns, output channels, taps a row, stride
    "picture, stride 2": (3, 64, 32, 3, 2),
    "picture of one channel": (1, 33, 17, 3, 1),
    "window": (64, 14, 64, 3, 1),
    "window, stride 2, odd channels": (33, 17, 65, 3, 2),
    "pointwise": (128, 14, 64, 1, 1),
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


def code(layer: tuple[int, ...], cpu: str) -> str:
    channels, size, out, taps, stride = layer
    weight = np.random.default_rng(1).integers(-128, 128, (out, channels, taps, taps)).astype("int8")
    module = graph(
        lambda builder, x: builder.emit(
            relax.op.nn.conv2d(x, relax.const(weight), stride, taps // 2, out_dtype="int32")
        ),
        [((1, channels, size, size), "uint8")],
    )
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    executable = tvm.compile(module, target, relax_pipeline=relax.get_pipeline("tvm_ext"))
    return "\n".join(part.inspect_source("asm") for part in host_modules(executable.mod) if part.kind == "llvm")


CASES = [(layer, cpu) for cpu in ("znver5", "icelake-server") for layer in LAYERS]


@pytest.mark.parametrize(("layer", "cpu"), CASES)
def test_nothing_is_written_to_the_stack(layer: str, cpu: str) -> None:
    loops = [loop for loop in innermost(code(LAYERS[layer], cpu)) if sum(map(bool, map(MULTIPLY.match, loop))) >= 8]
    assert loops
    for loop in loops:
        assert not [line for line in loop if SPILL.match(line)]
