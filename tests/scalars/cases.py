"""The table: operators, the types they take, and how far from the reference a result may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.scalars.values import FLOATS, INTEGERS, NUMBERS, SIGNED, UNSIGNED

Open = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes
    ----------
    op : str
    dtypes : tuple of str
        Of its tensor operands.
    operands : str
        ``x``, ``xy``, ``row`` (a matrix whose rows are worked on), ``cxy`` (a condition first).
    attributes : dict
    constants : tuple
        Further inputs, as arrays without a type of their own (Python numbers take the operands'); None is left out.
    result : str, optional
        Type of the result; the operands' by default.
    digits : bool
        Whether the result is rounded.
    absolute : float
        How far, in units of the type's last place at 1, a result may be off on top of that.
    open : callable, optional
        Given the operands, marks elements (or rows) whose value ONNX leaves open.
    outputs : tuple of str
        Types of the outputs, where there are several; "" is the operands'.
    opset : int
    """

    op: str
    dtypes: tuple[str, ...]
    operands: str = "x"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()
    result: str | None = None
    digits: bool = False
    absolute: float = 4.0
    open: Open | None = None
    outputs: tuple[str, ...] = ()
    opset: int = 20

    @property
    def name(self) -> str:
        """Words for the case."""
        settings = [f"{key}={value}" for key, value in self.attributes.items()]
        settings += [str(np.asarray(value).tolist()) if value is not None else "none" for value in self.constants]
        settings += [f"opset {self.opset}"] * (self.opset != 20)
        return " ".join([self.op, *settings])

    def types(self, dtype: str) -> Sequence[str]:
        """Types of the outputs."""
        return [kind or dtype for kind in self.outputs] or [self.result or dtype]


def _zero_divisor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Zero divides no integer, and INT_MIN / -1 is no integer of the type."""
    if x.dtype.kind == "f":
        return np.zeros(x.shape, bool)
    overflows = (x == np.iinfo(x.dtype).min) & (y == -1) if x.dtype.kind == "i" else np.zeros(x.shape, bool)
    return (y == 0) | overflows


def _wide_shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y >= x.dtype.itemsize * 8


def unheld(target: str) -> Open:
    """Mark floats that an integer type does not hold."""

    def mark(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f" or np.dtype(target).kind not in "iu":
            return np.zeros(x.shape, bool)
        limits = np.iinfo(target)
        with np.errstate(all="ignore"):
            whole = np.trunc(x.astype("float64"))
        return ~((whole >= limits.min) & (whole <= float(limits.max)) & (whole < 2.0**64 * (limits.max > 0)))

    return mark


def _nan_in_row(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        return np.zeros(len(x), bool)
    return np.isnan(x).any(-1)


def _overflowing(x: np.ndarray) -> np.ndarray:
    """Rows of integers whose sum or product may be none: onnxruntime's is then the end of the type, or anything."""
    if x.dtype.kind == "f":
        return np.zeros(len(x), bool)
    return np.abs(x.astype("float64")).prod(-1) + np.abs(x.astype("float64")).sum(-1) >= float(np.iinfo(x.dtype).max)


def _infinite_row(x: np.ndarray) -> np.ndarray:
    """Rows with NaN or inf, of which onnxruntime makes NaN in single precision and anything in double."""
    return (np.isnan(x) | (x == np.inf)).any(-1)


def _unbounded(x: np.ndarray) -> np.ndarray:
    """Infinities, for a missing bound: by ONNX's definition there is none then, onnxruntime takes the type's end."""
    return np.isinf(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def _zero_slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Zero, which is its own result, times what is not finite: onnxruntime multiplies in some types."""
    return (x == 0) & ~np.isfinite(y)


def _missing(x: np.ndarray) -> np.ndarray:
    """Numbers that are none: the sign of one is one in NumPy, 0 in half precision in onnxruntime."""
    return np.isnan(x)


def _single_precision(x: np.ndarray) -> np.ndarray:
    """Values of float64 that onnxruntime takes through float32."""
    with np.errstate(all="ignore"):
        return np.isfinite(x) & ~np.isfinite(x.astype("float32"))


def _integer_power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Powers of integers that overflow, and those with a negative exponent."""
    if x.dtype.kind == "f":
        return np.zeros(x.shape, bool)
    limits = np.iinfo(x.dtype)
    with np.errstate(all="ignore"):
        wide = np.power(x.astype("float64"), y.astype("float64"))
    return ~((wide >= limits.min) & (wide <= limits.max)) | (np.abs(wide) >= 2.0**53)


ROUNDED = """Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Log Reciprocal Selu Sigmoid Sin Sinh Softplus
Softsign Sqrt Tan Tanh HardSwish""".split()
WHOLE = "Abs Ceil Floor Identity Neg Relu Round".split()
COMPARISONS = "Equal Greater GreaterOrEqual Less LessOrEqual".split()

CASES: list[Case] = [
    *(Case(op, FLOATS, digits=True) for op in ROUNDED),
    *(Case(op, FLOATS) for op in WHOLE),
    Case("Abs", INTEGERS),
    Case("Neg", SIGNED),
    Case("Sign", INTEGERS),
    Case("Sign", FLOATS, open=_missing),
    Case("Mish", FLOATS, digits=True, absolute=64.0),
    Case("Relu", SIGNED),
    Case("Not", ("bool",)),
    Case("BitwiseNot", INTEGERS),
    Case("IsNaN", FLOATS, result="bool"),
    Case("IsInf", FLOATS, result="bool"),
    Case("IsInf", FLOATS, attributes={"detect_negative": 0}, result="bool"),
    Case("IsInf", FLOATS, attributes={"detect_positive": 0}, result="bool"),
    Case("Elu", FLOATS, attributes={"alpha": 0.7}, digits=True),
    Case("Celu", ("float32",), attributes={"alpha": 1.3}, digits=True),
    Case("HardSigmoid", FLOATS, attributes={"alpha": 0.3}, digits=True),
    Case("LeakyRelu", FLOATS, attributes={"alpha": 0.2}, digits=True),
    Case("ThresholdedRelu", FLOATS, attributes={"alpha": 1.5}),
    Case("ThresholdedRelu", FLOATS, attributes={"alpha": -2.0}),
    Case("Shrink", FLOATS, attributes={"lambd": 1.5, "bias": 0.5}, digits=True, open=_single_precision),
    Case("Gelu", FLOATS, digits=True, absolute=1e5),
    Case("Gelu", FLOATS, attributes={"approximate": "tanh"}, digits=True),
    *(Case("Clip", NUMBERS, constants=bounds) for bounds in ((2, 7), (7, 2))),
    *(Case("Clip", NUMBERS, constants=bounds, open=_unbounded) for bounds in ((None, 7), (2, None), (0, None))),
    Case("Clip", FLOATS, constants=(-1, 1)),
    Case("Clip", FLOATS, constants=(0, 6)),
    Case("Clip", ("float32",), attributes={"min": 0.0}, opset=6),
    Case("Clip", ("float32",), attributes={"max": 3.0}, opset=6),
    Case("Clip", ("float32",), opset=6),
    Case("Clip", ("float32",), opset=13, open=_unbounded),
    *(Case(op, NUMBERS, "xy", digits=op in ("Mul",)) for op in ("Add", "Sub", "Mul")),
    Case("Div", NUMBERS, "xy", digits=True, open=_zero_divisor),
    Case("Mod", NUMBERS, "xy", attributes={"fmod": 1}, digits=True, open=_zero_divisor),
    Case("Mod", INTEGERS, "xy", attributes={"fmod": 0}, open=_zero_divisor),
    Case("Pow", FLOATS, "xy", digits=True),
    Case("Pow", ("int32", "int64"), "xy", open=_integer_power),
    *(Case("Pow", FLOATS, constants=(number,), digits=True) for number in (0, 0.5, -0.5, 1, 2, 3, -1, -2, 1.5, 5)),
    *(Case(op, NUMBERS, "xy") for op in ("Max", "Min")),
    *(Case(op, FLOATS, "xy", digits=True) for op in ("Sum", "Mean")),
    *(Case(op, NUMBERS, "xy", result="bool") for op in COMPARISONS),
    Case("Equal", ("bool",), "xy", result="bool"),
    *(Case(op, ("bool",), "xy") for op in ("And", "Or", "Xor")),
    *(Case(op, INTEGERS, "xy") for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(Case("BitShift", UNSIGNED, "xy", {"direction": side}, open=_wide_shift) for side in ("LEFT", "RIGHT")),
    Case("PRelu", FLOATS, "xy", digits=True, open=_zero_slope),
    Case("Where", NUMBERS, "cxy"),
    *(
        Case(
            "Cast",
            (*NUMBERS, "bool"),
            attributes={"to": int(getattr(TensorProto, code))},
            result=kind,
            open=unheld(kind),
        )
        for code, kind in (
            ("FLOAT", "float32"),
            ("FLOAT16", "float16"),
            ("DOUBLE", "float64"),
            ("BOOL", "bool"),
            ("INT8", "int8"),
            ("INT16", "int16"),
            ("INT32", "int32"),
            ("INT64", "int64"),
            ("UINT8", "uint8"),
            ("UINT16", "uint16"),
            ("UINT32", "uint32"),
            ("UINT64", "uint64"),
        )
    ),
    Case("Softmax", FLOATS, "row", {"axis": -1}, digits=True),
    Case("LogSoftmax", FLOATS, "row", {"axis": -1}, digits=True, absolute=64.0, open=_infinite_row),
    Case("Hardmax", FLOATS, "row", {"axis": -1}, open=_nan_in_row),
    *(
        Case(
            "CumSum",
            (*FLOATS, "int32", "int64"),
            "row",
            {"exclusive": e, "reverse": r},
            (np.array(1),),
            digits=True,
            absolute=256.0,
        )
        for e in (0, 1)
        for r in (0, 1)
    ),
    *(
        Case(op, FLOATS, "row", {"keepdims": keep}, (np.array([1]),), digits=True)
        for op in """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum
        ReduceSumSquare""".split()
        for keep in (0, 1)
    ),
    *(
        Case(op, ("int32", "int64"), "row", {}, (np.array([1]),), open=_overflowing)
        for op in ("ReduceSum", "ReduceProd", "ReduceL1")
    ),
    *(
        Case(op, (*FLOATS, "int8", "uint8", "int32", "int64"), "row", {}, (np.array([1]),), open=_nan_in_row)
        for op in ("ReduceMax", "ReduceMin")
    ),
    *(
        Case(
            op,
            (*FLOATS, "int8", "uint8", "int32", "int64"),
            "row",
            {"axis": 1, "keepdims": 0, "select_last_index": last},
            result="int64",
            open=_nan_in_row,
        )
        for op in ("ArgMax", "ArgMin")
        for last in (0, 1)
    ),
    *(
        Case(
            "TopK",
            (*FLOATS, "int32", "int64", "uint8"),
            "row",
            {"axis": 1, "largest": largest},
            (np.array([1]),),
            outputs=("", "int64"),
            open=_nan_in_row,
        )
        for largest in (0, 1)
    ),
    *(Case("LpNormalization", FLOATS, "row", {"axis": 1, "p": p}, digits=True) for p in (1, 2)),
]
"""Each is tried with every one of its types."""
