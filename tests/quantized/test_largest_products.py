"""Integer products of the largest values, against NumPy: no instruction may saturate before the sums of 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext
from tests.cpu import IS_X86, has
from tests.frontend.onnx.text import graph

TARGETS: dict[str, Any] = {"native": None}
if IS_X86 and has("avx2"):  # without instructions for dot products of bytes
    TARGETS["haswell"] = {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}
if IS_X86:
    TARGETS["sse4"] = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}

VALUES = (-128, 127)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("depth", [1, 2, 33, 128])
@pytest.mark.parametrize("is_constant", [True, False])
def test_products(target: str, value: int, depth: int, is_constant: bool) -> None:
    weight = np.full((depth, 17), value, "int8")
    declared = "" if is_constant else f", int8[{depth},17] weight"
    model = graph(
        f"g (uint8[3,{depth}] x{declared}) => (int32[3,17] y) {{ y = MatMulInteger (x, weight) }}",
        **({"weight": weight} if is_constant else {}),
    )
    inputs = {"x": np.full((3, depth), 255, "uint8")} | ({} if is_constant else {"weight": weight})
    (found,) = tvm_ext.compile(model, TARGETS[target]).run(inputs).values()
    np.testing.assert_array_equal(found, np.full((3, 17), depth * 255 * value))


WEIGHTS = ((-128, -128), (127, 127), (64, 64), (127, 1), (127, 2), (-64, -64), (-128, 0), (-128, -1))
"""Those of neighbouring channels of the input. Two products with bytes stay within 16 bits, or just do not."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("groups", "height"), [(1, 5), (4, 5), (1, "h")])
def test_pairs(target: str, groups: int, height: int | str) -> None:
    weights, results, nodes = {}, [], []
    for number, values in enumerate(WEIGHTS):
        weight = np.empty((32, 64 // groups, 1, 3), "int8")
        weight[:, 0::2], weight[:, 1::2] = values
        weights[f"w{number}"] = weight
        results.append(f"int32[1,32,{height},5] y{number}")
        nodes.append(f"y{number} = ConvInteger <group={groups}> (x, w{number})")
    model = graph(f"g (uint8[1,64,{height},7] x) => ({','.join(results)}) {{ {' '.join(nodes)} }}", **weights)
    compiled = tvm_ext.compile(model, TARGETS[target], dynamic={"h": (1, None)} if height == "h" else None)
    found = compiled.run({"x": np.full((1, 64, 5, 7), 255, "uint8")})
    for number, values in enumerate(WEIGHTS):
        expected = np.full((1, 32, 5, 5), 255 * 3 * 32 // groups * sum(values))
        np.testing.assert_array_equal(found[f"y{number}"], expected, err_msg=str(values))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("channels", "outputs"), [(3, 17), (17, 3), (64, 33)])
def test_convolutions(target: str, value: int, channels: int, outputs: int) -> None:
    weight = np.full((outputs, channels, 3, 3), value, "int8")
    model = graph(
        f"g (uint8[1,{channels},7,5] x) => (int32[1,{outputs},5,3] y) {{ y = ConvInteger (x, weight) }}", weight=weight
    )
    (found,) = tvm_ext.compile(model, TARGETS[target]).run({"x": np.full((1, channels, 7, 5), 255, "uint8")}).values()
    np.testing.assert_array_equal(found, np.full((1, outputs, 5, 3), 9 * channels * 255 * value))
