"""Rules that factor out what sums have in common, and that fold factors and summands into weights.

Rows marked (T) are those of Niu et al., PLDI 2021, table 5, corrected where the letters of the print are wrong.
"""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_row = partial(Rule, "distributive")
_fast = partial(Rule, "distributive", mode="fast")

DISTRIBUTIVE: tuple[Rule, ...] = (
    _row("a * c + a * b", "a * (b + c)"),  # (T)
    _row("a + a * b", "a * (b + 1)", enables=True),  # (T), as many operations, but a is read once
    _row("square(a + b) - (a + b) * c", "(a + b) * ((a + b) - c)"),  # (T)
    # common factors
    _row("a * b - a * c", "a * (b - c)"),
    _row("a * b - a", "a * (b - 1)", enables=True),
    _row("a - a * b", "a * (1 - b)", enables=True),
    _row("square(a) - a * b", "a * (a - b)"),
    _row("square(a) + a * b", "a * (a + b)"),
    _row("square(a) + a", "a * (a + 1)", enables=True),
    _row("a / c + b / c", "(a + b) / c"),
    _row("a / c - b / c", "(a - b) / c"),
    _row("a / k + b / k", "(a + b) / k"),
    _row("k * a + k * b", "k * (a + b)"),
    _row("k * a - k * b", "k * (a - b)"),
    _row("k * a + m * a", "(k + m) * a"),
    _row("k * a - m * a", "(k - m) * a"),
    _row("k * a + a", "(k + 1) * a"),
    _row("a - k * a", "(1 - k) * a"),
    _row("a * v + a * w", "a * (v + w)"),
    _row("a * v - a * w", "a * (v - w)"),
    _row("a * v + a", "a * (v + 1)"),
    _row("a * v - a", "a * (v - 1)"),
    _row("a + a", "2 * a", enables=True),
    _row("(-a) + (-b)", "-(a + b)", integers=True),
    _row("(-a) - b", "-(a + b)", integers=True, enables=True),
    _row("abs(a) * b + abs(a) * c", "abs(a) * (b + c)"),
    _fast("(square(a) + 2 * (a * b)) + square(b)", "square(a + b)"),
    _fast("(square(a) - 2 * (a * b)) + square(b)", "square(a - b)"),
    _fast("square(a) - square(b)", "(a + b) * (a - b)", enables=True),
    _fast("(a + b) * (a - b)", "square(a) - square(b)", enables=True),
    # numbers multiplied out, so that they meet others
    _row("(a + k) * m", "a * m + (k * m)", enables=True),
    _row("(a * k + m) * v", "a * (k * v) + (m * v)"),
    _row("(a * v + w) * k", "a * (v * k) + (w * k)"),
    _row("(a * v + w) * u", "a * (v * u) + (w * u)"),
    _row("(a + v) * k", "a * k + (v * k)", enables=True),
    # maxima and minima of sums and products
    _row("maximum(a + c, b + c)", "maximum(a, b) + c"),
    _row("minimum(a + c, b + c)", "minimum(a, b) + c"),
    _row("maximum(a - c, b - c)", "maximum(a, b) - c"),
    _row("minimum(a - c, b - c)", "minimum(a, b) - c"),
    _row("maximum(k * a, k * b)", "k * maximum(a, b)", needs=("k>0",)),
    _row("minimum(k * a, k * b)", "k * minimum(a, b)", needs=("k>0",)),
    _row("maximum(-a, -b)", "-minimum(a, b)"),
    _row("minimum(-a, -b)", "-maximum(a, b)"),
    _row("maximum(a, b) + minimum(a, b)", "a + b"),
    _fast("maximum(a, b) * minimum(a, b)", "a * b"),
    _row("maximum(a, b) - minimum(a, b)", "abs(a - b)"),
    _row("maximum(a, -a)", "abs(a)"),
    _row("relu(a) + relu(-a)", "abs(a)"),
    _row("relu(a) - relu(-a)", "a"),
    # reductions of sums
    _row("sum(a) + sum(b)", "sum(a + b)", enables=True),
    _row("sum(a) - sum(b)", "sum(a - b)", enables=True),
    _row("mean(a) + mean(b)", "mean(a + b)", enables=True),
    _row("mean(a) - mean(b)", "mean(a - b)", enables=True),
    _row("sum(r * a)", "r * sum(a)"),
    _row("sum(a / r)", "sum(a) / r"),
    _row("mean(r * a)", "r * mean(a)"),
    _row("mean(a / r)", "mean(a) / r"),
    _row("sum(a + r)", "sum(a) + n * r"),
    _row("sum(a - r)", "sum(a) - n * r"),
    _row("mean(a + r)", "mean(a) + r"),
    _row("mean(a - r)", "mean(a) - r"),
    _row("mean(r - a)", "r - mean(a)"),
    _fast("mean(square(a - mean(a)))", "mean(square(a)) - square(mean(a))", enables=True),
    # products of matrices
    _row("matmul(a, b) + matmul(a, c)", "matmul(a, b + c)"),
    _row("matmul(a, b) - matmul(a, c)", "matmul(a, b - c)"),
    _row("matmul(a, c) + matmul(b, c)", "matmul(a + b, c)"),
    _row("matmul(a, c) - matmul(b, c)", "matmul(a - b, c)"),
    _row("matmul(a, w) * k", "matmul(a, w * k)"),
    _row("matmul(a, w) / k", "matmul(a, w / k)", needs=("k!=0",)),
    _row("matmul(a * k, w)", "matmul(a, w * k)"),
    _row("matmul(a / k, w)", "matmul(a, w / k)", needs=("k!=0",)),
    _row("matmul(-a, w)", "matmul(a, -w)"),
    _row("matmul(a, w) * v", "matmul(a, w * v)", needs=("v is a row",)),
    _row("(matmul(a, w) + u) * k", "matmul(a, w * k) + (u * k)"),
    _row("(matmul(a, w) + u) / k", "matmul(a, w / k) + (u / k)", needs=("k!=0",)),
    _row("(matmul(a, w) + u) * v", "matmul(a, w * v) + (u * v)", needs=("v is a row",)),
    _row("matmul(a * v, w)", "matmul(a, column(v) * w)", needs=("v is a row",)),
    _row("matmul(a + v, w)", "matmul(a, w) + matmul(row(v), w)", needs=("v is a row",)),
    _row("matmul(a + v, w) + u", "matmul(a, w) + (matmul(row(v), w) + u)", needs=("v is a row",)),
    _row("matmul(reshape(a * v), w)", "matmul(reshape(a), column(v) * w)", needs=("v is a row",)),
    _row(
        "matmul(reshape(a + v), w) + u",
        "matmul(reshape(a), w) + (matmul(row(v), w) + u)",
        needs=("v is a row",),
    ),
    _row("matmul(a, b) * k", "matmul(a * k, b)", enables=True),
    _row("matmul(a, b) / k", "matmul(a / k, b)", enables=True),
    _row("matmul(k * a, b)", "k * matmul(a, b)", enables=True),
    _row("matmul(a, k * b)", "k * matmul(a, b)", enables=True),
    # convolutions
    _row("conv(a, b) + conv(a, c)", "conv(a, b + c)"),
    _row("conv(a, b) - conv(a, c)", "conv(a, b - c)"),
    _row("conv(a, c) + conv(b, c)", "conv(a + b, c)"),
    _row("conv(a, c) - conv(b, c)", "conv(a - b, c)"),
    _row("conv(a, w) * k", "conv(a, w * k)"),
    _row("conv(a, w) / k", "conv(a, w / k)", needs=("k!=0",)),
    _row("conv(a * k, w)", "conv(a, w * k)"),
    _row("conv(a / k, w)", "conv(a, w / k)", needs=("k!=0",)),
    _row("conv(-a, w)", "conv(a, -w)"),
    _row("conv(a, w) * v", "conv(a, w * filters(v))", needs=("v is a channel",)),
    _row("(conv(a, w) + u) * v", "conv(a, w * filters(v)) + (u * v)", needs=("v is a channel",)),
    _row("(conv(a, w) + u) * k", "conv(a, w * k) + (u * k)"),
    _row("conv(a * v, w)", "conv(a, v * w)", needs=("v is a channel", "w is shared")),
)
