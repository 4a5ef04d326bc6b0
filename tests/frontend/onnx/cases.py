"""Tiny cases for every operator that is folded while importing, in the form that each operator set version has it.

A case is an operator, its inputs, its attributes, and the versions of ``ai.onnx`` in which it is written so. Floats
hold infinities, NaN and a negative zero where the operator is defined for them, integers hold negative numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NEWEST = 22
"""Newest operator set version that is tried."""


@dataclass(frozen=True)
class Case:
    """One operator on constant inputs.

    Attributes
    ----------
    operator : str
    inputs : tuple of numpy.ndarray or None
        None for an optional input that is left out.
    attributes : dict
    first, last : int
        Operator set versions.
    outputs : int
    """

    operator: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    first: int = 7
    last: int = NEWEST
    outputs: int = 1

    @property
    def name(self) -> str:
        """Words for the case in a test's name."""
        types = "-".join("none" if array is None else f"{array.dtype}{list(array.shape)}" for array in self.inputs)
        given = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.operator}({types};{given})"


def f(*values: float) -> np.ndarray:
    """Vector of floats."""
    return np.asarray(values, "float32")


def i(*values: int) -> np.ndarray:
    """Vector of int64."""
    return np.asarray(values, "int64")


def scalar(value: Any, dtype: str = "int64") -> np.ndarray:
    """Tensor without dimensions."""
    return np.asarray(value, dtype)


def grid(*shape: int, dtype: str = "float32", low: int = -4) -> np.ndarray:
    """Different small numbers around zero, in a fixed disorder."""
    count = int(np.prod(shape))
    step = next(step for step in (7, 5, 3, 1) if np.gcd(step, max(count, 1)) == 1)
    return ((np.arange(count) * step % max(count, 1)) + low).astype(dtype).reshape(shape)


ODD = f(-np.inf, -2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 100.0, np.inf, np.nan)
ROWS = grid(2, 3, 4)
LOGICAL = np.asarray([True, False, True, False])
OTHER = np.asarray([True, True, False, False])

EVERYWHERE = """
Abs Ceil Cos Elu Erf Exp Floor HardSigmoid Identity IsNaN LeakyRelu Log Neg Reciprocal Relu Round Sigmoid Sign Sin
Softplus Softsign Sqrt Tan Tanh Asin Acos Atan Sinh Cosh Asinh Acosh Atanh IsInf
""".split()
SINCE = {name: 9 for name in ("Erf", "IsNaN", "Sign", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")}
SINCE |= {"IsInf": 10, "Round": 11}
REDUCTIONS = """
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
""".split()


def cases() -> Iterator[Case]:
    """Every case."""
    for operator in EVERYWHERE:
        yield Case(operator, (ODD,), first=SINCE.get(operator, 7))
    yield Case("LeakyRelu", (ODD,), {"alpha": 0.3})
    yield from arithmetic()
    yield from reductions()
    yield from shapes()
    yield from indexing()
    yield from others()


def arithmetic() -> Iterator[Case]:
    """Operators on two tensors or more."""
    column, row = ODD[:, None], f(-2, -0.0, 0, 3, np.inf, np.nan)
    for operator in ("Add", "Sub", "Mul", "Div"):
        yield Case(operator, (column, row))
        yield Case(operator, (i(7, -7, 7, -7, 0), i(2, 2, -2, -2, 3)))
        yield Case(operator, (np.asarray([7, -7, 2**31 - 1], "int32"), np.asarray([2, -2, 2], "int32")))
    yield Case("Pow", (f(-2, -1, 0, 0.5, 2, np.inf)[:, None], f(-1, 0, 0.5, 2, np.inf)))
    yield Case("Pow", (i(-2, 0, 3), i(0, 1, 2)), first=12)
    yield Case("Pow", (f(1, 2, 3), i(2, 3, 0)), first=12)
    yield Case("Pow", (i(1, 2, 3), f(0.5, 2, 0)), first=12)
    for operator in ("Equal", "Less", "Greater"):
        yield Case(operator, (i(1, 2, 3), i(3, 2, 1)))
        yield Case(operator, (column, row), first=11)
    for operator in ("LessOrEqual", "GreaterOrEqual"):
        yield Case(operator, (column, row), first=12)
        yield Case(operator, (i(1, 2, 3), i(3, 2, 1)), first=12)
    for operator in ("And", "Or", "Xor"):
        yield Case(operator, (LOGICAL, OTHER))
    yield Case("Not", (LOGICAL,))
    yield Case("Where", (LOGICAL, f(1, 2, 3, np.nan), f(5, 6, 7, 8)), first=9)
    for operator in ("Max", "Min", "Sum", "Mean"):
        yield Case(operator, (column, row), first=8)
        yield Case(operator, (f(1, 2), f(2, 1), f(0, 5)))
    for operator in ("Max", "Min"):
        yield Case(operator, (i(1, -2, 3), i(2, 1, -4)), first=12)
    yield Case("Mod", (i(7, -7, 7, -7), i(3, 3, -3, -3)), first=10)
    yield Case("Mod", (i(7, -7, 7, -7), i(3, 3, -3, -3)), {"fmod": 1}, first=10)
    yield Case("Mod", (f(7.5, -7.5, 7.5, -7.5), f(3, 3, -3, -3)), {"fmod": 1}, first=10)
    unsigned = np.asarray([1, 2, 128, 255], "uint8")
    for direction in ("LEFT", "RIGHT"):
        yield Case("BitShift", (unsigned, np.asarray([1, 2, 7, 1], "uint8")), {"direction": direction}, first=11)
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield Case(operator, (i(1, -2, 12), i(3, 5, 10)), first=18)
    yield Case("BitwiseNot", (i(1, -2, 12),), first=18)
    yield Case("Clip", (ODD,), {"min": -1.0, "max": 1.5}, last=10)
    yield Case("Clip", (ODD,), {"min": -1.0}, last=10)
    yield Case("Clip", (ODD, scalar(-1, "float32"), scalar(1.5, "float32")), first=11)
    yield Case("Clip", (ODD, scalar(2, "float32"), scalar(1, "float32")), first=11)
    yield Case("Clip", (ODD, None, scalar(1, "float32")), first=11)
    yield Case("Clip", (i(-3, 0, 9), scalar(-1), scalar(4)), first=12)
    yield Case("MatMul", (grid(2, 3), grid(3, 2)))
    yield Case("MatMul", (grid(2, 1, 3, 2), grid(2, 4)))
    yield Case("MatMul", (grid(2, 3, dtype="int64"), grid(3, 2, dtype="int64")), first=9)
    yield Case("Gemm", (grid(2, 3), grid(3, 4), grid(4)), {"alpha": 0.5, "beta": 2.0})
    yield Case("Gemm", (grid(3, 2), grid(4, 3), grid(1)), {"transA": 1, "transB": 1})
    yield Case("Gemm", (grid(2, 3), grid(3, 4)), first=11)
    for to in (1, 3, 5, 6, 7, 2, 9, 10, 11):
        yield Case("Cast", (f(-2.7, -1, -0.0, 0.5, 2.7, 100),), {"to": to} if to != 2 else {"to": 12})
        yield Case("Cast", (i(-3, 0, 5, 300),), {"to": to})
    yield Case("Cast", (LOGICAL,), {"to": 1})
    yield Case("CastLike", (i(1, 2, 3), f(0)), first=15)


def reductions() -> Iterator[Case]:
    """Reductions, their axes an attribute first and an input later."""
    positive = grid(2, 3, 4, low=1)
    for operator in REDUCTIONS:
        became = 13 if operator == "ReduceSum" else 18
        for data in (positive, grid(2, 3, 4, dtype="int64", low=1)):
            if data.dtype == np.int64 and operator in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceMean"):
                continue
            yield Case(operator, (data,), {"axes": [1]}, last=became - 1)
            yield Case(operator, (data,), {"axes": [0, 2], "keepdims": 0}, last=became - 1)
            yield Case(operator, (data,), {"axes": [-1]}, first=11, last=became - 1)
            yield Case(operator, (data, i(1)), first=became)
            yield Case(operator, (data, i(0, -1)), {"keepdims": 0}, first=became)
            yield Case(operator, (data,))
            yield Case(operator, (data,), {"noop_with_empty_axes": 1}, first=became)
    for operator in ("ArgMax", "ArgMin"):
        ties = f(1, 3, 3, 1, 0, 0).reshape(2, 3)
        yield Case(operator, (ties,))
        yield Case(operator, (ties,), {"axis": 1, "keepdims": 0})
        yield Case(operator, (ties,), {"axis": -1}, first=11)
        yield Case(operator, (ties,), {"axis": 1, "select_last_index": 1}, first=12)
    yield Case("CumSum", (ROWS, scalar(1)), first=11)
    yield Case("CumSum", (ROWS, scalar(-1)), {"exclusive": 1, "reverse": 1}, first=11)
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        yield Case(operator, (ROWS,))
        for axis in (0, 1, 2):
            yield Case(operator, (ROWS,), {"axis": axis})
        yield Case(operator, (ROWS,), {"axis": -2}, first=11)
    yield Case("TopK", (f(3, 1, 3, 2, 1), i(3)), {}, 10, outputs=2)
    yield Case("TopK", (f(3, 1, 3, 2, 1), i(3)), {"largest": 0}, 11, outputs=2)
    yield Case("TopK", (ROWS, i(2)), {"axis": 1}, 10, outputs=2)
    yield Case("TopK", (ROWS,), {"axis": 1, "k": 2}, last=9, outputs=2)


def shapes() -> Iterator[Case]:
    """Operators that move or repeat elements."""
    yield Case("Shape", (ROWS,))
    yield Case("Shape", (ROWS,), {"start": 1, "end": -1}, first=15)
    yield Case("Shape", (ROWS,), {"start": -9, "end": 9}, first=15)
    yield Case("Size", (ROWS,))
    yield Case("Concat", (ROWS, ROWS), {"axis": 1})
    yield Case("Concat", (ROWS, ROWS), {"axis": -1}, first=11)
    yield Case("ConstantOfShape", (i(2, 3),), first=9)
    yield Case("Expand", (grid(3, 1), i(2, 1, 4)), first=8)
    for axis in (0, 1, 2, 3):
        yield Case("Flatten", (ROWS,), {"axis": axis})
    yield Case("Flatten", (ROWS,), {"axis": -1}, first=11)
    yield Case("Flatten", (ROWS,))
    yield Case("Reshape", (ROWS, i(0, -1)))
    yield Case("Reshape", (grid(0, 3), i(3, 0)), {"allowzero": 1}, first=14)
    yield Case("Transpose", (ROWS,))
    yield Case("Transpose", (ROWS,), {"perm": [1, 2, 0]})
    yield Case("Squeeze", (grid(1, 3, 1),), {"axes": [0]}, last=12)
    yield Case("Squeeze", (grid(1, 3, 1),), {"axes": [-1]}, first=11, last=12)
    yield Case("Squeeze", (grid(1, 3, 1),))
    yield Case("Squeeze", (grid(1, 3, 1), i(0, 2)), first=13)
    yield Case("Unsqueeze", (ROWS,), {"axes": [0, 2]}, last=12)
    yield Case("Unsqueeze", (ROWS,), {"axes": [3, 0]}, last=12)
    yield Case("Unsqueeze", (ROWS,), {"axes": [-1]}, first=11, last=12)
    yield Case("Unsqueeze", (ROWS,), {"axes": [-1, 1, -3]}, first=11, last=12)
    yield Case("Unsqueeze", (ROWS, i(-1, 0)), first=13)
    yield Case("Unsqueeze", (ROWS, i(3, 0)), first=13)
    yield Case("Split", (ROWS,), {"axis": 2}, last=17, outputs=2)
    yield Case("Split", (ROWS,), {"axis": 2, "split": [1, 3]}, last=12, outputs=2)
    yield Case("Split", (ROWS, i(1, 3)), {"axis": 2}, first=13, outputs=2)
    yield Case("Split", (ROWS,), {"axis": 2, "num_outputs": 3}, first=18, outputs=3)
    yield Case("Slice", (ROWS,), {"starts": [1, -3], "ends": [3, 100], "axes": [1, 2]}, last=9)
    yield Case("Slice", (ROWS,), {"starts": [0], "ends": [-1]}, last=9)
    yield Case("Slice", (ROWS, i(1, -3), i(3, 100), i(1, 2)), first=10)
    yield Case("Slice", (ROWS, i(-1, 9), i(-9, 0), i(1, -1), i(-1, -2)), first=10)
    yield Case("Tile", (ROWS, i(1, 2, 2)))
    yield Case("Pad", (ROWS,), {"pads": [0, 1, 0, 0, 0, 2]}, last=10)
    for mode in ("constant", "reflect", "edge"):
        yield Case("Pad", (ROWS,), {"pads": [0, 1, 2, 0, 1, 1], "mode": mode, "value": 1.5}, last=10)
        yield Case("Pad", (ROWS, i(0, 1, 2, 0, 1, 1), scalar(1.5, "float32")), {"mode": mode}, first=11)
    yield Case("Pad", (ROWS, i(0, -1, 0, 0, 0, -1)), first=11)
    yield Case("Pad", (ROWS, i(1, 2, 1, 0), None, i(2, 1)), first=18)
    yield Case("DepthToSpace", (grid(1, 8, 1, 2),), {"blocksize": 2})
    yield Case("DepthToSpace", (grid(1, 8, 1, 2),), {"blocksize": 2, "mode": "CRD"}, first=11)
    yield Case("SpaceToDepth", (grid(1, 2, 2, 4),), {"blocksize": 2})
    yield Case("Trilu", (ROWS,), first=14)
    yield Case("Trilu", (ROWS, scalar(-1)), {"upper": 0}, first=14)
    yield Case("EyeLike", (grid(3, 4),), {"k": 1}, first=9)
    yield Case("EyeLike", (grid(3, 4),), {"dtype": 7, "k": -1}, first=9)


def indexing() -> Iterator[Case]:
    """Operators that take or put elements at indices."""
    yield Case("Gather", (ROWS, i(1, 0)))
    yield Case("Gather", (ROWS, i(3, 0, 1).reshape(3, 1)), {"axis": 2})
    yield Case("Gather", (ROWS, i(-1, 0)), {"axis": -2}, first=11)
    yield Case("GatherElements", (ROWS, i(1, 0, 1, 1).reshape(1, 1, 4)), {"axis": 1}, first=11)
    yield Case("GatherElements", (grid(3, 3), i(-1, 0, -2).reshape(1, 3)), first=11)
    yield Case("GatherND", (ROWS, i(0, 1, 1, 2).reshape(2, 2)), first=11)
    yield Case("GatherND", (ROWS, i(0, 2).reshape(2, 1)), {"batch_dims": 1}, first=12)
    for operator in ("ScatterElements", "Scatter"):
        first, last = (11, NEWEST) if operator == "ScatterElements" else (9, 10)
        yield Case(operator, (grid(3, 3), i(1, 0, 2).reshape(1, 3), f(9, 8, 7).reshape(1, 3)), {}, first, last)
        yield Case(operator, (grid(3, 3), i(1, 2).reshape(2, 1), f(9, 8).reshape(2, 1)), {"axis": 1}, first, last)
    twice = (grid(3), i(1, 1, 0), f(2, 3, 4))
    yield Case("ScatterElements", twice, {"reduction": "add"}, first=16)
    yield Case("ScatterElements", twice, {"reduction": "mul"}, first=16)
    yield Case("ScatterElements", twice, {"reduction": "max"}, first=18)
    yield Case("ScatterElements", twice, {"reduction": "min"}, first=18)
    yield Case("ScatterND", (grid(3, 2), i(2, 0).reshape(2, 1), f(1, 2, 3, 4).reshape(2, 2)), first=11)
    pairs = (grid(3, 2), i(2, 2).reshape(2, 1), f(1, 2, 3, 4).reshape(2, 2))
    yield Case("ScatterND", pairs, {"reduction": "add"}, first=16)
    yield Case("ScatterND", pairs, {"reduction": "max"}, first=18)
    yield Case("Compress", (ROWS, np.asarray([False, True])), {"axis": 1}, first=9)
    yield Case("Compress", (ROWS, np.asarray([False, True, True])), first=9)
    yield Case("NonZero", (f(1, 0, -2, np.nan),), first=9)
    yield Case("OneHot", (i(1, -1, 5), scalar(3), f(2, 7)), first=9)
    yield Case("OneHot", (i(1, 0), scalar(3), f(2, 7)), {"axis": 0}, first=9)
    yield Case("Unique", (f(3, 1, 3, 2),), {}, 11, outputs=4)
    yield Case("Unique", (f(3, 1, 3, 2),), {"sorted": 0}, 11, outputs=4)
    yield Case("Unique", (grid(2, 2),), {"axis": 0}, 11, outputs=4)


def others() -> Iterator[Case]:
    """Operators that make a tensor of a few numbers."""
    yield Case("Range", (scalar(1), scalar(9), scalar(3)), first=11)
    yield Case("Range", (scalar(9), scalar(0), scalar(-2)), first=11)
    yield Case("Range", (scalar(1, "float32"), scalar(2, "float32"), scalar(0.3, "float32")), first=11)
    for operator in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        yield Case(operator, (scalar(7),), first=17)
        yield Case(operator, (scalar(7),), {"periodic": 0}, first=17)
    mel = tuple(scalar(value) for value in (4, 16, 8000))
    yield Case("MelWeightMatrix", (*mel, scalar(0, "float32"), scalar(4000, "float32")), first=17)
    yield Case("IsInf", (ODD,), {"detect_negative": 0}, first=10)
    yield Case("IsInf", (ODD,), {"detect_positive": 0}, first=10)
