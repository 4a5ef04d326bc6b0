"""Attributes that tests of operators leave at their defaults, in combinations, against onnxruntime.

Where onnxruntime and the evaluator of ONNX differ (lengths of ``align_corners`` with a scale that leaves a fraction,
nearest elements of coordinates that are whole but for rounding), there is no case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import tvm_ext
from tests.frontend.onnx.ops.harness import assert_close, inputs_of, node_model, run_onnxruntime


@dataclass(frozen=True)
class Case:
    """A node: operator, inputs, attributes, which inputs are constants, operator set, outputs and their types."""

    op: str
    values: Mapping[str, Any]
    attributes: Mapping[str, Any]
    constants: Sequence[str] = ()
    opset: int = 17
    outs: Sequence[str] = ("Y",)
    types: Sequence[str] = ()


def _cases() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    found: list[Case] = []

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("float32")

    def case(
        op: str, values: Mapping[str, Any], attributes: Any = None, constants: Sequence[str] = (), **more: Any
    ) -> None:
        found.append(Case(op, values, attributes or {}, constants, **more))

    picture = normal(2, 4, 9, 11)
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        case("Conv", {"X": picture, "W": normal(6, 4, 3, 2)}, {"auto_pad": auto, "strides": [2, 3]}, ("W",))
        case("MaxPool", {"X": picture}, {"auto_pad": auto, "kernel_shape": [3, 2], "strides": [2, 3]})
        case("AveragePool", {"X": picture}, {"auto_pad": auto, "kernel_shape": [3, 2], "strides": [2, 3]})
        case("ConvTranspose", {"X": picture, "W": normal(4, 3, 3, 2)}, {"auto_pad": auto, "strides": [2, 3]}, ("W",))
    case(
        "Conv",
        {"X": picture, "W": normal(6, 2, 3, 2), "B": normal(6)},
        {"group": 2, "dilations": [2, 1], "pads": [1, 2, 0, 1]},
        ("W", "B"),
    )
    case("Conv", {"X": picture, "W": normal(6, 2, 3, 2)}, {"group": 2, "dilations": [2, 1], "pads": [1, 2, 0, 1]})
    case(
        "ConvTranspose",
        {"X": picture, "W": normal(4, 3, 3, 2)},
        {"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
        ("W",),
    )
    case("ConvTranspose", {"X": picture, "W": normal(4, 3, 3, 2)}, {"dilations": [2, 2], "pads": [1, 0, 0, 1]}, ("W",))
    for c in (0, 1):
        for p in ([0, 0, 0, 0], [1, 0, 1, 1]):
            case("MaxPool", {"X": picture}, {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": c, "pads": p})
            case("MaxPool", {"X": picture}, {"kernel_shape": [3, 2], "dilations": [2, 3], "ceil_mode": c, "pads": p})
            for i in (0, 1):
                case(
                    "AveragePool",
                    {"X": picture},
                    {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": c, "pads": p, "count_include_pad": i},
                    opset=19,
                )
    for s in (1, 3, 5):
        case("LRN", {"X": picture}, {"size": s, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    for m in ("constant", "reflect", "edge"):
        case(
            "Pad",
            {"X": picture, "P": np.array([0, 1, 2, 0, 0, 2, 1, 3]), "v": np.float32(1.5)},
            {"mode": m},
            ("P", "v"),
        )
        case("Pad", {"X": picture, "P": np.array([0, 0, -2, 1, 0, 0, 1, -3])}, {"mode": m}, ("P",))
    case(
        "Pad",
        {"X": picture, "P": np.array([1, 2, 0, 3]), "v": np.float32(1), "a": np.array([-1, 1])},
        {"mode": "wrap"},
        ("P", "v", "a"),
        opset=19,
    )
    for b, m in itertools.product((2,), ("DCR", "CRD")):
        case("DepthToSpace", {"X": normal(1, 8, 3, 5)}, {"blocksize": b, "mode": m})
    for red in ("none", "add", "mul", "max", "min"):
        case(
            "ScatterElements",
            {"X": normal(4, 5), "i": np.array([[0, -1, 2], [1, 1, 3]]), "u": normal(2, 3)},
            {"axis": 0, "reduction": red},
            opset=18,
        )
        case(
            "ScatterElements",
            {"X": normal(4, 5), "i": np.array([[0, 0, 2], [1, 1, 1]]), "u": normal(2, 3)},
            {"axis": 1, "reduction": red if red != "none" else "add"},
            opset=18,
        )
        case(
            "ScatterND",
            {
                "X": normal(4, 5),
                "i": np.array([[0], [2], [0]] if red != "none" else [[0], [2], [-1]]),
                "u": normal(3, 5),
            },
            {"reduction": red},
            opset=18,
        )
    case("GatherND", {"X": normal(2, 3, 4), "i": np.array([[[1, -1]], [[0, 2]]])}, {"batch_dims": 1})
    case("GatherElements", {"X": normal(2, 3, 4), "i": np.array([[[1, -1]], [[0, 2]]])}, {"axis": 2})
    case("Gather", {"X": normal(2, 3, 4), "i": np.array([[1, -1], [0, -3]])}, {"axis": 1})
    for ax in (-1, 0, 1, 2):
        case("Softmax", {"X": normal(2, 3, 4)}, {"axis": ax}, opset=11)
        case("Softmax", {"X": normal(2, 3, 4)}, {"axis": ax})
        case("LogSoftmax", {"X": normal(2, 3, 4)}, {"axis": ax}, opset=11)
        case("Hardmax", {"X": normal(2, 3, 4)}, {"axis": ax}, opset=11)
        case("Hardmax", {"X": normal(2, 3, 4)}, {"axis": ax})
        case("Flatten", {"X": normal(2, 3, 4)}, {"axis": ax})
        case(
            "LayerNormalization",
            {"X": normal(2, 3, 4), "s": normal(*(2, 3, 4)[ax:]), "b": normal(*(2, 3, 4)[ax:])},
            {"axis": ax, "epsilon": 1e-2},
            ("s", "b"),
        )
        case(
            "ArgMax",
            {"X": np.round(normal(2, 3, 4))},
            {"axis": ax, "keepdims": 0, "select_last_index": 1},
            types=("int64",),
        )
    case(
        "LayerNormalization",
        {"X": normal(2, 3, 4), "s": normal(4)},
        {},
        ("s",),
        outs=("Y", "M", "I"),
        types=("float32",) * 3,
    )
    case("InstanceNormalization", {"X": picture, "s": normal(4), "b": normal(4)}, {"epsilon": 0.1}, ("s", "b"))
    case(
        "GroupNormalization",
        {"X": picture, "s": normal(4), "b": normal(4)},
        {"epsilon": 0.1, "num_groups": 2},
        ("s", "b"),
        opset=21,
    )
    case(
        "BatchNormalization",
        {"X": picture, "s": normal(4), "b": normal(4), "m": normal(4), "v": abs(normal(4))},
        {"epsilon": 0.1},
        ("s", "b", "m", "v"),
    )
    case(
        "BatchNormalization",
        {"X": picture, "s": normal(4), "b": normal(4), "m": normal(4), "v": abs(normal(4))},
        {"epsilon": 0.1},
    )
    case("MeanVarianceNormalization", {"X": picture}, {"axes": [0, 2]})
    case("MeanVarianceNormalization", {"X": picture})
    for p in (1, 2, 3):
        case(
            "LpPool",
            {"X": picture},
            {"kernel_shape": [3, 2], "p": p, "strides": [2, 2], "pads": [1, 0, 1, 1]},
            opset=18,
        )
        case("GlobalLpPool", {"X": picture}, {"p": p})
    for tA, tB in itertools.product((0, 1), (0, 1)):
        case(
            "Gemm",
            {"A": normal(*((5, 3) if tA else (3, 5))), "B": normal(*((4, 5) if tB else (5, 4))), "C": normal(4)},
            {"transA": tA, "transB": tB, "alpha": 0.5, "beta": 2.0},
            ("C",),
        )
        case(
            "Gemm",
            {"A": normal(*((5, 3) if tA else (3, 5))), "B": normal(*((4, 5) if tB else (5, 4))), "C": normal(3, 1)},
            {"transA": tA, "transB": tB, "alpha": 0.5, "beta": 0.0},
        )
    for a, b in (((3,), (3,)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((2, 1, 4, 3), (5, 3, 2))):
        case("MatMul", {"A": normal(*a), "B": normal(*b)})
    for eq, a in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk", ((2, 2, 3), (2, 3, 4))),
        ("...ij->...ji", ((2, 3, 4),)),
        ("ii->i", ((3, 3),)),
        ("i,j->ij", ((3,), (4,))),
        ("ij->", ((3, 4),)),
        ("bhqd,bhkd->bhqk", ((1, 2, 3, 4), (1, 2, 5, 4))),
    ):
        case("Einsum", {f"a{n}": normal(*s) for n, s in enumerate(a)}, {"equation": eq})
    for u, k in itertools.product((0, 1), (-2, 0, 1, 9)):
        case("Trilu", {"X": normal(2, 3, 5), "k": np.array(k)}, {"upper": u}, ("k",))
    for n in (0, 1):
        case(
            "TopK",
            {"X": np.round(normal(3, 7)), "k": np.array([3])},
            {"axis": 1 - n, "largest": n, "sorted": 1},
            ("k",),
            outs=("V", "I"),
            types=("float32", "int64"),
        )
    for mode, ct in itertools.product(
        ("nearest", "linear", "cubic"), ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ):
        case(
            "Resize",
            {"X": picture, "r": None, "s": np.array([1, 1, 1.7, 0.55], "float32")},
            {"mode": mode, "coordinate_transformation_mode": ct, "nearest_mode": "floor"},
            ("s",),
        )
        case(
            "Resize",
            {"X": picture, "r": None, "s": None, "z": np.array([2, 4, 5, 20])},
            {
                "mode": mode,
                "coordinate_transformation_mode": ct,
                "cubic_coeff_a": -0.5,
                "exclude_outside": int(mode == "cubic"),
            },
            ("z",),
        )
    for nm in ("round_prefer_floor", "round_prefer_ceil", "ceil", "floor"):
        case(
            "Resize",
            {"X": picture, "r": None, "s": np.array([1, 1, 2.5, 0.5], "float32")},
            {"mode": "nearest", "nearest_mode": nm},
            ("s",),
        )
    for t in ("int8", "uint8"):
        zp = np.array(3, t)
        case("QuantizeLinear", {"X": normal(3, 4) * 20, "s": np.float32(0.3), "z": zp}, {}, ("s", "z"), types=(t,))
        case(
            "QuantizeLinear",
            {"X": normal(3, 4) * 20, "s": abs(normal(4)) + 0.1, "z": np.array([1, 2, 3, 4], t)},
            {"axis": -1},
            ("s", "z"),
            types=(t,),
        )
        case(
            "QuantizeLinear",
            {"X": np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, 300, -300], "float32"), "s": np.float32(1), "z": zp},
            {},
            ("s", "z"),
            types=(t,),
        )
        case(
            "DequantizeLinear",
            {"X": rng.integers(0, 100, (3, 4)).astype(t), "s": abs(normal(3)), "z": np.array([1, 2, 3], t)},
            {"axis": 0},
            ("s", "z"),
            types=("float32",),
        )
    case("DynamicQuantizeLinear", {"X": normal(3, 4)}, outs=("Y", "S", "Z"), types=("uint8", "float32", "uint8"))
    case(
        "DynamicQuantizeLinear",
        {"X": np.zeros((3, 4), "float32")},
        outs=("Y", "S", "Z"),
        types=("uint8", "float32", "uint8"),
    )
    case("CumSum", {"X": normal(3, 4), "a": np.array(-2)}, {"reverse": 1, "exclusive": 1}, ("a",))
    case("Tile", {"X": normal(2, 3), "r": np.array([2, 3])}, {}, ("r",))
    case("Expand", {"X": normal(3, 1), "s": np.array([2, 1, 4])}, {}, ("s",))
    case("Split", {"X": normal(7, 3), "s": np.array([2, 5])}, {"axis": 0}, ("s",), outs=("A", "B"))
    case("Split", {"X": normal(7, 3)}, {"axis": 0, "num_outputs": 3}, outs=("A", "B", "D"), opset=18)
    for st, en, ax, sp in (
        ([1], [-1], [1], [1]),
        ([-1], [-100], [1], [-2]),
        ([5, 1], [0, 100], [0, -1], [-1, 2]),
        ([3], [3], [0], [1]),
    ):
        case(
            "Slice",
            {"X": normal(6, 7), "s": np.array(st), "e": np.array(en), "a": np.array(ax), "t": np.array(sp)},
            {},
            ("s", "e", "a", "t"),
        )
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
        X = normal(2, 3, 4) if op not in ("ReduceLogSum",) else abs(normal(2, 3, 4))
        case(op, {"X": X, "a": np.array([0, -1])}, {"keepdims": 0}, ("a",), opset=18)
        case(op, {"X": X}, {"keepdims": 0, "noop_with_empty_axes": 1}, opset=18)
        case(op, {"X": X}, {"keepdims": 1}, opset=18)
        case(op, {"X": X, "a": np.zeros(0, "int64")}, {"keepdims": 0}, ("a",), opset=18)
        if op != "ReduceSum":
            case(op, {"X": X}, {"keepdims": 0, "axes": [-2]}, opset=13)
    for op in ("ReduceL2", "ReduceLogSum", "ReduceMean"):
        case(
            op,
            {
                "X": np.arange(-4, 20).reshape(2, 3, 4).astype("int32") ** 2 - 7 * (op == "ReduceMean"),
                "a": np.array([1]),
            },
            {},
            ("a",),
            opset=18,
        )
    for op, opset in itertools.product(("AveragePool", "MaxPool"), (11, 19)):
        # The last window would begin in the padding behind the input, and is left out.
        windows = {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}
        case(op, {"X": normal(1, 2, 8, 11)}, windows, opset=opset)
    case("GlobalAveragePool", {"X": picture})
    case("GlobalMaxPool", {"X": picture})
    case("SpaceToDepth", {"X": normal(1, 2, 4, 6)}, {"blocksize": 2})
    case(
        "OneHot",
        {"i": np.array([0, -1, 9, 2]), "d": np.array(4), "v": np.array([0, 5], "float32")},
        {"axis": 0},
        ("d", "v"),
        types=("float32",),
    )
    case("Compress", {"X": normal(4, 3), "c": np.array([True, False, True])}, {"axis": 0}, ("c",))
    case(
        "Unique",
        {"X": np.array([2, 1, 1, 3, 2.0], "float32")},
        {},
        (),
        outs=("Y", "A", "B", "D"),
        types=("float32", "int64", "int64", "int64"),
    )
    case("NonZero", {"X": np.round(normal(3, 4))}, types=("int64",))
    case("Range", {"s": np.array(1), "l": np.array(10), "d": np.array(3)}, {}, ("s", "l", "d"))
    case("Det", {"X": normal(2, 3, 3)})
    case("ReverseSequence", {"X": normal(4, 3, 2), "l": np.array([4, 2, 1])}, {"time_axis": 0, "batch_axis": 1})
    case("EyeLike", {"X": normal(3, 5)}, {"k": -1})
    case("Dropout", {"X": normal(3, 5)})
    for d in ("forward", "reverse", "bidirectional"):
        directions = 2 if d == "bidirectional" else 1
        for lbr in (0, 1):
            case(
                "GRU",
                {
                    "X": normal(5, 2, 3),
                    "W": normal(directions, 12, 3),
                    "R": normal(directions, 12, 4),
                    "B": normal(directions, 24),
                },
                {"hidden_size": 4, "direction": d, "linear_before_reset": lbr},
                ("W", "R", "B"),
                outs=("Y", "H"),
            )
        case(
            "LSTM",
            {
                "X": normal(5, 2, 3),
                "W": normal(directions, 16, 3),
                "R": normal(directions, 16, 4),
                "B": normal(directions, 32),
                "l": np.array([5, 3], "int32"),
                "h": normal(directions, 2, 4),
                "c": normal(directions, 2, 4),
                "P": normal(directions, 12),
            },
            {"hidden_size": 4, "direction": d, "clip": 0.7},
            ("W", "R", "B", "P"),
            outs=("Y", "H", "C"),
        )
        case(
            "RNN",
            {"X": normal(5, 2, 3), "W": normal(directions, 4, 3), "R": normal(directions, 4, 4)},
            {"hidden_size": 4, "direction": d, "activations": ["Relu"] * directions},
            ("W", "R"),
            outs=("Y", "H"),
        )

    return iter(found)


CASES = list(_cases())
QUICK = ("ReduceL1", "ReduceSumSquare", "ReduceLogSum", "Trilu", "Slice")


def _marked() -> list[Any]:
    return [
        pytest.param(case, id=f"{case.op}-{number}", marks=[] if case.op in QUICK else [pytest.mark.slow])
        for number, case in enumerate(CASES)
    ]


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
@pytest.mark.parametrize("case", _marked())
def test_attributes(case: Case) -> None:
    types = [np.dtype(kind) for kind in case.types]
    model = node_model(
        case.op, case.values, case.outs, case.attributes, case.constants, opset=case.opset, output_types=types
    )
    feeds = inputs_of(model, case.values)
    found = list(tvm_ext.compile(model).run(feeds).values())
    assert_close(found, run_onnxruntime(model, feeds), rtol=1e-3, atol=1e-4)
