"""Products, reductions, quantisation, and what works along an axis."""

from __future__ import annotations

import itertools

import numpy as np

from tests.frontend.onnx.ops.attribute_cases.case import Draw


def collect(draw: Draw) -> None:
    """Add the cases of these operators."""
    for ax in (-1, 0, 1, 2):
        draw.case("Softmax", {"X": draw.normal(2, 3, 4)}, {"axis": ax}, opset=11)
        draw.case("Softmax", {"X": draw.normal(2, 3, 4)}, {"axis": ax})
        draw.case("LogSoftmax", {"X": draw.normal(2, 3, 4)}, {"axis": ax}, opset=11)
        draw.case("Hardmax", {"X": draw.normal(2, 3, 4)}, {"axis": ax}, opset=11)
        draw.case("Hardmax", {"X": draw.normal(2, 3, 4)}, {"axis": ax})
        draw.case("Flatten", {"X": draw.normal(2, 3, 4)}, {"axis": ax})
        draw.case(
            "LayerNormalization",
            {"X": draw.normal(2, 3, 4), "s": draw.normal(*(2, 3, 4)[ax:]), "b": draw.normal(*(2, 3, 4)[ax:])},
            {"axis": ax, "epsilon": 1e-2},
            ("s", "b"),
        )
        draw.case(
            "ArgMax",
            {"X": np.round(draw.normal(2, 3, 4))},
            {"axis": ax, "keepdims": 0, "select_last_index": 1},
            types=("int64",),
        )
    for tA, tB in itertools.product((0, 1), (0, 1)):
        draw.case(
            "Gemm",
            {
                "A": draw.normal(*((5, 3) if tA else (3, 5))),
                "B": draw.normal(*((4, 5) if tB else (5, 4))),
                "C": draw.normal(4),
            },
            {"transA": tA, "transB": tB, "alpha": 0.5, "beta": 2.0},
            ("C",),
        )
        draw.case(
            "Gemm",
            {
                "A": draw.normal(*((5, 3) if tA else (3, 5))),
                "B": draw.normal(*((4, 5) if tB else (5, 4))),
                "C": draw.normal(3, 1),
            },
            {"transA": tA, "transB": tB, "alpha": 0.5, "beta": 0.0},
        )
    for a, b in (((3,), (3,)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((2, 1, 4, 3), (5, 3, 2))):
        draw.case("MatMul", {"A": draw.normal(*a), "B": draw.normal(*b)})
    for eq, a in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk", ((2, 2, 3), (2, 3, 4))),
        ("...ij->...ji", ((2, 3, 4),)),
        ("ii->i", ((3, 3),)),
        ("i,j->ij", ((3,), (4,))),
        ("ij->", ((3, 4),)),
        ("bhqd,bhkd->bhqk", ((1, 2, 3, 4), (1, 2, 5, 4))),
    ):
        draw.case("Einsum", {f"a{n}": draw.normal(*s) for n, s in enumerate(a)}, {"equation": eq})
    for t in ("int8", "uint8"):
        zp = np.array(3, t)
        draw.case(
            "QuantizeLinear", {"X": draw.normal(3, 4) * 20, "s": np.float32(0.3), "z": zp}, {}, ("s", "z"), types=(t,)
        )
        draw.case(
            "QuantizeLinear",
            {"X": draw.normal(3, 4) * 20, "s": abs(draw.normal(4)) + 0.1, "z": np.array([1, 2, 3, 4], t)},
            {"axis": -1},
            ("s", "z"),
            types=(t,),
        )
        draw.case(
            "QuantizeLinear",
            {"X": np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, 300, -300], "float32"), "s": np.float32(1), "z": zp},
            {},
            ("s", "z"),
            types=(t,),
        )
        draw.case(
            "DequantizeLinear",
            {"X": draw.rng.integers(0, 100, (3, 4)).astype(t), "s": abs(draw.normal(3)), "z": np.array([1, 2, 3], t)},
            {"axis": 0},
            ("s", "z"),
            types=("float32",),
        )
    draw.case(
        "DynamicQuantizeLinear", {"X": draw.normal(3, 4)}, outs=("Y", "S", "Z"), types=("uint8", "float32", "uint8")
    )
    draw.case(
        "DynamicQuantizeLinear",
        {"X": np.zeros((3, 4), "float32")},
        outs=("Y", "S", "Z"),
        types=("uint8", "float32", "uint8"),
    )
    draw.case("CumSum", {"X": draw.normal(3, 4), "a": np.array(-2)}, {"reverse": 1, "exclusive": 1}, ("a",))
    for op in (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceProd",
        "ReduceSumSquare",
        "ReduceL1",
    ):
        X = draw.normal(2, 3, 4) if op not in ("ReduceLogSum",) else abs(draw.normal(2, 3, 4))
        draw.case(op, {"X": X, "a": np.array([0, -1])}, {"keepdims": 0}, ("a",), opset=18)
        draw.case(op, {"X": X}, {"keepdims": 0, "noop_with_empty_axes": 1}, opset=18)
        draw.case(op, {"X": X}, {"keepdims": 1}, opset=18)
        draw.case(op, {"X": X, "a": np.zeros(0, "int64")}, {"keepdims": 0}, ("a",), opset=18)
        if op != "ReduceSum":
            draw.case(op, {"X": X}, {"keepdims": 0, "axes": [-2]}, opset=13)
    for op in ("ReduceL2", "ReduceLogSum", "ReduceMean"):
        draw.case(
            op,
            {
                "X": np.arange(-4, 20).reshape(2, 3, 4).astype("int32") ** 2 - 7 * (op == "ReduceMean"),
                "a": np.array([1]),
            },
            {},
            ("a",),
            opset=18,
        )
    draw.case("Det", {"X": draw.normal(2, 3, 3)})
