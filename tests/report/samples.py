"""An inspection made by hand."""

from __future__ import annotations

from typing import Any

from tvm_ext.graph.decisions import Decision
from tvm_ext.report.inspection import (
    Inspection,
    Kernel,
    MemoryChart,
    MemoryProfile,
    Operator,
    PhaseTime,
    Rewriting,
    TensorLife,
)


def profile(name: str, during: tuple[int, ...]) -> MemoryProfile:
    peak = max(during, default=0)
    place = during.index(peak) if during else 0
    return MemoryProfile(name, f"about {name}", during, peak, place, (("a", "float32[8]", 32),))


def small_inspection(name: str = "net.onnx", flops: Any = 1_500_000, kernel: str = "fused_conv2d_relu") -> Inspection:
    return Inspection(
        model=name,
        target="llvm mcpu=generic",
        versions={"tvm-ext": "1.2.3"},
        inputs=(("x", "float32[1, 3]"),),
        outputs=(("y", "float32[1, 2]"),),
        notes=("bound batch to 1",),
        operator_uses=7,
        flops={"multiply": 1, "add": 2, "other": 3, "total": flops},
        unknown_flops=("sort",),
        constant_bytes=2048,
        planned_bytes=96,
        operators=(Operator("nn.conv2d", 2, flops, 64), Operator("sort", 1, None, None)),
        kernels=(
            Kernel(
                kernel,
                3,
                flops,
                100,
                28,
                "cpu.conv2d",
                ("conv2d", "relu"),
                512,
                ("Many-to-Many", "One-to-One"),
                "Many-to-Many",
            ),
            Kernel("sort", 1, None, 8, 8, "", ("sort",), 0, ("Opaque",), "Opaque"),
        ),
        tensors=(TensorLife("a", "float32[8]", "intermediate", 32, kernel, ("sort",)),),
        memory=(
            MemoryChart(
                "Kernels as they run",
                "After fusion.",
                (
                    profile("importer's order", (32, 64, 32)),
                    profile("depth first", (32, 64, 32)),
                    profile("planned", (96, 96, 64)),
                ),
            ),
            MemoryChart("Operators as imported", "Before.", (), "tensor 'a' has 4 * n bytes"),
        ),
        phases=(PhaseTime("import", "reads", 1.25, 7, 0), PhaseTime("fuse", "merges", 0.0125, 4, 2)),
        layouts=(
            Decision("nn.conv2d", ("Conv node 'a'",), "winograd", (("block_in", 16), ("winograd", {"tile": [7, 2]}))),
        ),
        rewritings=(Rewriting("a * c + a * b -> a * (b + c)", 4),),
        rewritten_flops=(3000, 2000),
    )
