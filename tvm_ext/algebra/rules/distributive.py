"""Rules that factor out what sums have in common, and that fold factors and summands into weights.

Rows marked (T) are those of Niu et al., PLDI 2021, table 5, corrected where the letters of the print are wrong.
"""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_row = partial(Rule, "distributive")
_fast = partial(Rule, "distributive", mode="fast")

DISTRIBUTIVE: tuple[Rule, ...] = (
    _fast("a * c + a * b", "a * (b + c)"),  # (T); b + c may overflow where a is small
    _row("a + a * b", "a * (b + 1)", enables=True),  # (T), as many operations, but a is read once
    # numbers multiplied out, so that they meet others; where a sum is near zero, its parts are not
    _row("(a * v + w) * u", "a * (v * u) + (w * u)"),
    _fast("(a + k) * m", "a * m + (k * m)", enables=True),
    _fast("(a + v) * k", "a * k + (v * k)", enables=True),
    # products of matrices
    _row("matmul(a * k, w)", "matmul(a, w * k)"),
    _row("(matmul(a, w) + u) * v", "matmul(a, w * v) + (u * v)", needs=("v is a row",)),
    _row("matmul(a * v, w)", "matmul(a, column(v) * w)", needs=("v is a row",)),
    _fast("matmul(a + v, w)", "matmul(a, w) + matmul(row(v), w)", needs=("v is a row",)),
    _fast("matmul(a + v, w) + u", "matmul(a, w) + (matmul(row(v), w) + u)", needs=("v is a row",)),
    # no network of the zoo has it, but GPT-2 has as it was first exported: its products are of flattened rows
    _fast(
        "matmul(reshape(a + v), w) + u",
        "matmul(reshape(a), w) + (matmul(row(v), w) + u)",
        needs=("v is a row",),
    ),
    _row("matmul(a, b) / k", "matmul(a / k, b)", assumes=("k is moderate",), enables=True),
    # convolutions
    _row("conv(a, w) * k", "conv(a, w * k)"),
    # pictures of bytes made what a network was trained on
    _row("conv(a / k - v, w)", "conv(a - v * k, w / k)", needs=("k!=0",)),
    _row("conv(a / k - m, w)", "conv(a - m * k, w / k)", needs=("k!=0",)),
    _row("(conv(a, w) + u) * v", "conv(a, w * filters(v)) + (u * v)", needs=("v is a channel",)),
    _row("(conv(a, w) + u) * k", "conv(a, w * k) + (u * k)"),
)
