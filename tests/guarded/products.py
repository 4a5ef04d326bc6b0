"""Families of matrix products and attention."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.guarded.cases import SMALL, Draw, Sample, constant, family

op, nn = relax.op, relax.op.nn
WIDTHS = (1, 2, 3, 7, 8, 15, 17, 31, 33, 63, 65, 127, 130)


@family
def matmul_constant(draw: Draw) -> Sample:
    m, k, n = draw.one(SMALL), draw.one(WIDTHS), draw.one(WIDTHS)
    weight = draw.array((k, n))
    bias = draw.array((n,))
    epilogue = draw.one(
        [(lambda a: a, lambda a: a), (nn.relu, lambda a: np.maximum(a, 0)), (op.tanh, np.tanh), (op.exp, np.exp)]
    )
    scale = np.float32(0.2)
    return Sample(
        lambda a: epilogue[0](op.matmul(a, constant(weight * scale)) + constant(bias)),
        [draw.array((m, k)) * scale],
        lambda a: epilogue[1](a @ (weight * scale) + bias),
        1e-3,
    )


@family
def matmul_variable(draw: Draw) -> Sample:
    m, k, n = draw.one(SMALL), draw.one(WIDTHS), draw.one(WIDTHS)
    dtype = draw.one(("float32", "float32", "float64", "float16"))
    return Sample(
        lambda a, b: op.matmul(a, b),
        [draw.array((m, k), dtype), draw.array((k, n), dtype)],
        lambda a, b: (a.astype("float64") @ b.astype("float64")).astype(dtype),
        2e-2 if dtype == "float16" else 1e-3,
    )


@family
def matmul_transposed(draw: Draw) -> Sample:
    m, k, n = draw.one(SMALL), draw.one(WIDTHS), draw.one(WIDTHS)
    return Sample(
        lambda a, b: nn.relu(op.matmul(a, op.permute_dims(b, [1, 0]))),
        [draw.array((m, k)), draw.array((n, k))],
        lambda a, b: np.maximum(a @ b.T, 0),
        1e-3,
    )


@family
def matmul_batched(draw: Draw) -> Sample:
    b, m, k, n = draw.one((1, 2, 3, 5)), draw.one(SMALL), draw.one(SMALL), draw.one(WIDTHS)
    second = (b, k, n) if draw.random.random() < 0.6 else (k, n)
    return Sample(lambda a, c: op.matmul(a, c), [draw.array((b, m, k)), draw.array(second)], lambda a, c: a @ c, 1e-3)


@family
def matvec(draw: Draw) -> Sample:
    k, n = draw.one(WIDTHS), draw.one(WIDTHS)
    if draw.random.random() < 0.5:
        weight = draw.array((k, n))
        return Sample(lambda a: op.matmul(a, constant(weight)), [draw.array((1, k))], lambda a: a @ weight, 1e-3)
    return Sample(lambda a, b: op.matmul(a, b), [draw.array((n, k)), draw.array((k, 1))], lambda a, b: a @ b, 1e-3)


@family
def matmul_of_integers(draw: Draw) -> Sample:
    m, k, n = draw.one(SMALL), draw.one(WIDTHS), draw.one(WIDTHS)
    return Sample(
        lambda a, b: op.matmul(a, b, out_dtype="int32"),
        [draw.array((m, k), "int8"), draw.array((k, n), "int8")],
        lambda a, b: a.astype("int32") @ b.astype("int32"),
        0.0,
    )


@family
def matmul_to_heads(draw: Draw) -> Sample:
    rows, k, heads, width = draw.one(SMALL), draw.one((3, 17, 64)), draw.one((1, 2, 3)), draw.one((1, 5, 16))
    weight = draw.array((k, heads * width)) * np.float32(0.2)
    return Sample(
        lambda a: op.permute_dims(op.reshape(op.matmul(a, constant(weight)), (rows, heads, width)), [1, 0, 2]),
        [draw.array((rows, k))],
        lambda a: (a @ weight).reshape(rows, heads, width).transpose(1, 0, 2),
        1e-3,
    )


@family
def attention(draw: Draw) -> Sample:
    heads, rows, columns, width = draw.one((1, 3)), draw.one(SMALL), draw.one(SMALL), draw.one((1, 5, 8, 16, 33))

    def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)

    return Sample(
        lambda q, k, v: nn.attention(q, k, v),
        [draw.array((1, extent, heads, width)) for extent in (rows, columns, columns)],
        expected,
        1e-3,
    )


@family
def attention_by_hand(draw: Draw) -> Sample:
    heads, rows, columns, width = draw.one((1, 3)), draw.one(SMALL), draw.one(SMALL), draw.one((1, 5, 16, 33))

    def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q @ k.transpose(0, 2, 1) / 4
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    return Sample(
        lambda q, k, v: op.matmul(
            nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1])) / relax.const(4, "float32"), -1), v
        ),
        [draw.array((heads, extent, width)) for extent in (rows, columns, columns)],
        expected,
        1e-3,
    )


@family
def quantized_matmul(draw: Draw) -> Sample:
    m, k, n = draw.one(SMALL), draw.one(WIDTHS), draw.one(WIDTHS)
    weight = draw.random.integers(-127, 128, (k, n)).astype("int8")
    scales = (0.01 + 0.01 * draw.random.random(n)).astype("float32")
    zero = int(draw.random.integers(0, 256))
    x = draw.random.integers(0, 256, (m, k)).astype("uint8")
    s = np.float32(0.05)

    def build(a: relax.Expr) -> relax.Expr:
        left = op.dequantize(a, relax.const(s), relax.const(np.uint8(zero), "uint8"), axis=1)
        right = op.dequantize(constant(weight), constant(scales), constant(np.zeros(n, "int8")), axis=1)
        product = op.matmul(left, right)
        return op.quantize(
            product, relax.const(np.float32(2.0)), relax.const(np.uint8(100), "uint8"), axis=1, out_dtype="uint8"
        )

    def expected(a: np.ndarray) -> np.ndarray:
        product = ((a.astype("float64") - zero) * s) @ (weight * scales.astype("float64"))
        return np.clip(np.rint(product / 2.0) + 100, 0, 255)

    return Sample(build, [x], expected, 1 / 255 + 1e-3)
