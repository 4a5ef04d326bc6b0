"""Rules that regroup products, sums, powers and functions of functions.

Rows marked (T) are those of Niu et al., PLDI 2021, table 5, corrected where the print is wrong: its first row lacks
parentheses, its second one needs ``b >= 0``.
"""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_row = partial(Rule, "associative")
_fast = partial(Rule, "associative", mode="fast")

ASSOCIATIVE: tuple[Rule, ...] = (
    _row("recip(a) * (recip(a) * b)", "square(recip(a)) * b", enables=True),  # (T)
    _row("(a * sqrt(b)) * (sqrt(b) * c)", "(a * b) * c", assumes=("b>=0",)),  # (T)
    _row("(abs(a) * b) * abs(c)", "abs(a * c) * b"),  # (T)
    _row("(a * sum(b)) * (sum(b) * c)", "(a * square(sum(b))) * c"),  # (T)
    # the same for other functions and reductions that are used twice
    _row("(a * sum(b)) * sum(b)", "a * square(sum(b))", enables=True),
    _row("(a * mean(b)) * (mean(b) * c)", "(a * square(mean(b))) * c"),
    _row("(a * max(b)) * (max(b) * c)", "(a * square(max(b))) * c"),
    _row("(a * min(b)) * (min(b) * c)", "(a * square(min(b))) * c"),
    _row("(a * prod(b)) * (prod(b) * c)", "(a * square(prod(b))) * c"),
    _row("(a * rsqrt(b)) * (rsqrt(b) * c)", "(a / b) * c", assumes=("b>0",)),
    _row("(a / sqrt(b)) / sqrt(b)", "a / b", assumes=("b>=0",)),
    # numbers that meet
    _row("(a * k) * m", "a * (k * m)"),
    _row("(a * k) * b", "(a * b) * k", enables=True),
    _row("(a / k) * b", "(a * b) / k", enables=True),
    _row("(a + k) + m", "a + (k + m)"),
    _row("(a - k) + m", "a + (m - k)"),
    _row("(a + k) - m", "a + (k - m)"),
    _row("(a - k) - m", "a - (k + m)"),
    _row("(k - a) + m", "(k + m) - a"),
    _row("(k - a) - m", "(k - m) - a"),
    _row("k - (a + m)", "(k - m) - a"),
    _row("k - (a - m)", "(k + m) - a"),
    _row("k - (m - a)", "a + (k - m)"),
    _row("(a / k) / m", "a / (k * m)"),
    _row("(a * k) / m", "a * (k / m)", needs=("m!=0",)),
    _row("(a / k) * m", "a * (m / k)", needs=("k!=0",)),
    _row("(k / a) * m", "(k * m) / a"),
    _row("(k / a) / m", "(k / m) / a", needs=("m!=0",)),
    _row("k / (a * m)", "(k / m) / a", needs=("m!=0",)),
    _row("k / (a / m)", "(k * m) / a", needs=("m!=0",)),
    _row("k / (m / a)", "(k / m) * a", needs=("m!=0",), assumes=("a!=0",)),
    _row("maximum(maximum(a, k), m)", "maximum(a, maximum(k, m))"),
    _row("minimum(minimum(a, k), m)", "minimum(a, minimum(k, m))"),
    _row("(a ** k) ** m", "a ** (k * m)", needs=("a>=0",)),
    # tensors known when the function is compiled that meet
    _row("(a * v) * w", "a * (v * w)"),
    _row("(a + v) + w", "a + (v + w)"),
    _row("(a - v) + w", "a + (w - v)"),
    _row("(a + v) - w", "a + (v - w)"),
    _row("(a - v) - w", "a - (v + w)"),
    _row("(a * v) * k", "a * (v * k)"),
    _row("(a * v) / k", "a * (v / k)", needs=("k!=0",)),
    _row("(a / k) * v", "a * (v / k)", needs=("k!=0",)),
    _row("(a + v) + k", "a + (v + k)"),
    _row("matmul(matmul(a, v), w)", "matmul(a, matmul(v, w))"),
    # quotients
    _row("recip(recip(a))", "a", assumes=("a!=0",)),
    _row("a * recip(b)", "a / b"),
    _fast("recip(a) * recip(b)", "recip(a * b)"),
    _fast("(a / b) / c", "a / (b * c)", enables=True),
    _row("a / recip(b)", "a * b", assumes=("b!=0",)),
    _row("recip(a / b)", "b / a", assumes=("b!=0",)),
    _fast("recip(a) / b", "recip(a * b)", enables=True),
    _fast("(a * b) / b", "a", assumes=("b!=0",)),
    _fast("(a / b) * b", "a", assumes=("b!=0",)),
    _fast("a / (a * b)", "recip(b)", assumes=("a!=0",)),
    # signs
    _row("-(-a)", "a", integers=True),
    _row("a + (-b)", "a - b", integers=True),
    _row("a - (-b)", "a + b", integers=True),
    _row("-(a - b)", "b - a", integers=True),
    _row("(-a) * (-b)", "a * b", integers=True),
    _row("(-a) / (-b)", "a / b"),
    _row("(-a) * k", "a * (-k)"),
    _row("-(a * k)", "a * (-k)"),
    _row("-(a / k)", "a / (-k)"),
    _row("-(a * v)", "a * (-v)"),
    _fast("(a + b) - b", "a"),
    _fast("(a - b) + b", "a"),
    # absolute values, squares, roots
    _row("abs(abs(a))", "abs(a)"),
    _row("abs(a) * abs(b)", "abs(a * b)"),
    _row("abs(a) / abs(b)", "abs(a / b)"),
    _row("abs(-a)", "abs(a)"),
    _row("abs(square(a))", "square(a)"),
    _row("abs(a) * abs(a)", "square(a)"),
    _row("square(abs(a))", "square(a)"),
    _row("square(-a)", "square(a)"),
    _row("abs(a)", "a", needs=("a>=0",)),
    _row("relu(a)", "a", needs=("a>=0",)),
    _row("relu(relu(a))", "relu(a)"),
    _row("maximum(a, 0)", "relu(a)", enables=True),
    _fast("square(a) * square(b)", "square(a * b)"),
    _fast("square(a) / square(b)", "square(a / b)"),
    _row("square(a) ** k", "abs(a) ** (2 * k)", enables=True),
    _row("a ** 2", "square(a)", enables=True),
    _row("a ** 1", "a"),
    _row("a ** 0.5", "sqrt(a)", enables=True),
    _row("a ** (-1)", "recip(a)", enables=True),
    _row("a ** (-0.5)", "rsqrt(a)", enables=True),
    _fast("sqrt(a) * sqrt(b)", "sqrt(a * b)", needs=("a>=0", "b>=0")),
    _fast("sqrt(a) / sqrt(b)", "sqrt(a / b)", needs=("a>=0", "b>0")),
    _row("sqrt(a) * sqrt(a)", "a", assumes=("a>=0",)),
    _row("square(sqrt(a))", "a", assumes=("a>=0",)),
    _fast("sqrt(square(a))", "abs(a)"),
    _row("recip(sqrt(a))", "rsqrt(a)"),
    _row("a / sqrt(b)", "a * rsqrt(b)", enables=True),
    _row("sqrt(recip(a))", "rsqrt(a)", assumes=("a>0",)),
    _row("square(rsqrt(a))", "recip(a)", assumes=("a>0",)),
    _row("rsqrt(a) * rsqrt(a)", "recip(a)", assumes=("a>0",)),
    _row("a * rsqrt(a)", "sqrt(a)", assumes=("a>0",)),
    _row("a / rsqrt(b)", "a * sqrt(b)", assumes=("b>0",), enables=True),
    # exponentials and logarithms
    _fast("exp(a) * exp(b)", "exp(a + b)"),
    _fast("exp(a) / exp(b)", "exp(a - b)"),
    _fast("exp(a) * (exp(b) * c)", "exp(a + b) * c"),
    _fast("recip(exp(a))", "exp(-a)", enables=True),
    _fast("square(exp(a))", "exp(2 * a)", enables=True),
    _fast("sqrt(exp(a))", "exp(0.5 * a)", enables=True),
    _fast("log(exp(a))", "a"),
    _row("exp(log(a))", "a", assumes=("a>0",)),
    _fast("log(a) + log(b)", "log(a * b)", needs=("a>0", "b>0")),
    _fast("log(a) - log(b)", "log(a / b)", needs=("a>0", "b>0")),
    _fast("log(sqrt(a))", "0.5 * log(a)", enables=True),
    # functions spelt out
    _fast("recip(1 + exp(-a))", "sigmoid(a)"),
    _fast("1 / (1 + exp(-a))", "sigmoid(a)"),
    _row("a * sigmoid(a)", "silu(a)", enables=True),
    _fast("(exp(a) - exp(-a)) / (exp(a) + exp(-a))", "tanh(a)"),
    _fast("2 * sigmoid(2 * a) - 1", "tanh(a)"),
    _row("1 - sigmoid(a)", "sigmoid(-a)", enables=True),
    _fast("a / (1 + exp(-a))", "silu(a)"),
    # data movement twice
    _row("reshape(reshape(a, 'x'), 'shape')", "reshape(a, 'shape')"),
)
