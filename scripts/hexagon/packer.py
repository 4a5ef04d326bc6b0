"""Packets and model cycles of kernels: of LLVM, ours without and with soft dependences, one instruction a packet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tests.hexagon.cases import OTHERS, product_case
from tvm_ext.backends.hexagon.code import UNPACKETIZED, assembly
from tvm_ext.backends.hexagon.packer.memory import Memory
from tvm_ext.backends.hexagon.packer.pack import pack_assembly
from tvm_ext.backends.hexagon.packer.trace import execute
from tvm_ext.schedules.hexagon.code import Code
from tvm_ext.schedules.hexagon.panels import LAYOUTS
from tvm_ext.target import resolve_target

TARGET, PROCESSOR = resolve_target("hexagon-v67"), "hexagonv67"
SEED = 4
LARGEST = 96
WAYS = {
    "soft": {"candidates": False, "capped": False},
    "hard": {"soft": False, "candidates": False, "capped": False},
    "shipped_hard": {"soft": False},
    "shipped": {},
}
"""Packings: with soft dependences and with those made hard, each alone and for few cycles; and both again with LLVM's
packets, block by block and as a whole, among the candidates, and at most 5 % more of them. The last is what is shipped;
what dependences made hard allow is a candidate there, too."""


def calls(quick: bool) -> Iterator[tuple[str, list[tuple[tirx.PrimFunc, list[int]]], list[np.ndarray]]]:
    """Give kernels that are called in turn, with their buffers: of HVX, each kind in a layout or in all, and TVM's."""
    random = np.random.default_rng(SEED)
    cases = [product_case(random, layout, False, False, LARGEST) for layout in LAYOUTS]
    if not quick:
        cases += [draw(random, layout) for draw, layout in zip(OTHERS, itertools.cycle(LAYOUTS), strict=False)]
    for case in cases:
        buffers = [np.zeros(-item, np.uint8) if isinstance(item, int) else item for item in case.buffers]
        yield case.label, case.calls, buffers
    data = [random.integers(0, 256, 2048).astype(np.uint8) for _ in range(3)]
    for name, lanes in (("sum of TVM, scalar", 1), ("sum of TVM, vectors", 128)):
        yield name, [(_sum_of_three(2048, lanes), [0, 1, 2, 3])], [*data, np.zeros(2048, np.uint16)]
    left = random.integers(0, 256, 24 * 24).astype(np.uint8)
    right = random.integers(-128, 128, 24 * 24).astype(np.int8)
    yield "product of TVM, scalar", [(_plain_product(24), [0, 1, 2])], [left, right, np.zeros(24 * 24, np.int32)]


def _sum_of_three(size: int, lanes: int) -> tirx.PrimFunc:
    """R = A + B + C of bytes, the source's running example (figure 4.5), as LLVM takes it from plain loops."""
    code = Code(**{name: (size, "uint8") for name in ("first", "second", "third")}, result=(size, "uint16"))
    dtype = "uint16" if lanes == 1 else f"uint16x{lanes}"
    with code.loop("i", size // lanes) as i:
        values = [code.load(code[name], i * lanes, lanes).astype(dtype) for name in ("first", "second", "third")]
        code.store(code["result"], i * lanes, values[0] + values[1] + values[2], lanes)
    return code.function("sum")


def _plain_product(size: int) -> tirx.PrimFunc:
    code = Code(first=(size * size, "uint8"), second=(size * size, "int8"), result=(size * size, "int32"))
    with code.loop("i", size) as i, code.loop("j", size) as j:
        code.store(code["result"], i * size + j, tirx.const(0, "int32"))
        with code.loop("k", size) as k:
            left = code.load(code["first"], i * size + k).astype("int32")
            right = code.load(code["second"], k * size + j).astype("int32")
            total = code.load(code["result"], i * size + j)
            code.store(code["result"], i * size + j, total + left * right)
    return code.function("product")


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; ``quick`` takes products and TVM's kernels only."""
    rows: list[dict[str, Any]] = []
    for label, kernels, buffers in calls(quick):
        for number, (kernel, places) in enumerate(kernels):
            row, arrays = _measured(f"{label} #{number}", kernel, [buffers[place] for place in places])
            rows.append(row)
            print(row, flush=True)
            for place, array in zip(places, arrays, strict=True):
                buffers[place] = array
    compared = [row for row in rows if row["exact"]]

    def mean(top: str, bottom: str) -> float:
        return math.exp(sum(math.log(row[top] / row[bottom]) for row in compared) / len(compared))

    return rows, {
        "packer_exact": len(compared) / len(rows),
        "packer_kernels": len(rows),
        "packer_refused_packets": sum(row["refused"] for row in rows),
        "packer_order_holds": _share(
            rows, lambda row: row["cycles_shipped"] <= row["cycles_shipped_hard"] <= row["cycles_llvm"]
        ),
        "packer_soft_alone_below_hard_alone": _share(rows, lambda row: row["cycles_soft"] < row["cycles_hard"]),
        "packer_soft_alone_not_above_hard_alone": _share(rows, lambda row: row["cycles_soft"] <= row["cycles_hard"]),
        "packer_soft_alone_below_llvm": _share(rows, lambda row: row["cycles_soft"] < row["cycles_llvm"]),
        "packer_soft_alone_not_above_llvm": _share(rows, lambda row: row["cycles_soft"] <= row["cycles_llvm"]),
        "packer_soft_alone_is_shipped": _share(rows, lambda row: row["cycles_soft"] <= row["cycles_shipped"]),
        "packer_order_holds_without_llvms_packets": _share(
            rows, lambda row: row["cycles_soft"] <= row["cycles_hard"] <= row["cycles_llvm"]
        ),
        "packer_cycles_not_above_llvm": _share(rows, lambda row: row["cycles_shipped"] <= row["cycles_llvm"]),
        "packer_packets_vs_llvm_worst": max(row["packets_shipped"] / row["packets_llvm"] for row in rows),
        "packer_packets_vs_llvm": mean("packets_shipped", "packets_llvm"),
        "packer_cycles_vs_llvm": mean("cycles_shipped", "cycles_llvm"),
        "packer_cycles_vs_llvm_best": min(row["cycles_shipped"] / row["cycles_llvm"] for row in rows),
        "packer_cycles_vs_hard": mean("cycles_shipped", "cycles_hard"),
        "packer_cycles_vs_single": mean("cycles_shipped", "cycles_single"),
    }


def _share(rows: Sequence[dict[str, Any]], holds: Any) -> float:
    return sum(map(holds, rows)) / len(rows)


def _measured(label: str, kernel: tirx.PrimFunc, arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Run a kernel in every way; gives its row, and the arrays as LLVM's packets leave them."""
    mod = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    llvm, single = assembly(mod, TARGET), assembly(mod, TARGET, UNPACKETIZED)
    texts, refused, kept, memory = {"llvm": llvm, "single": single}, 0, 0, Memory()
    for way, options in WAYS.items():
        packed = pack_assembly(single, llvm, ["kernel"], processor=PROCESSOR, memory=memory, **options)  # type: ignore[arg-type]
        texts[way] = packed.text
        refused, kept = refused + len(packed.refused), kept + len(packed.kept)
    runs = {way: execute(text, "kernel", arrays, PROCESSOR) for way, text in texts.items()}
    exact = all(
        (first == second).all()
        for run in runs.values()
        for first, second in zip(runs["llvm"].arrays, run.arrays, strict=True)
    )
    row: dict[str, Any] = {"kernel": label, "exact": exact, "refused": refused, "kept": kept}
    row |= {f"packets_{way}": run.packets for way, run in runs.items()}
    row |= {f"cycles_{way}": run.cycles for way, run in runs.items()}
    return row, [np.array(item) for item in runs["llvm"].arrays]
