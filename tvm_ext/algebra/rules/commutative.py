"""Rules that change the order of two operators: reductions and maps, and data movement and arithmetic.

Rows marked (T) are those of Niu et al., PLDI 2021, table 5 (shifts to the left only: a shift to the right drops bits).
Rows over several functions are written once, with ``F`` for the function.
"""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_row = partial(Rule, "commutative")
_fast = partial(Rule, "commutative", mode="fast")

# Functions that never decrease: the largest result is that of the largest operand.
_RISING = "exp sigmoid tanh erf relu floor ceil round sign".split()
# Functions of one operand that work on each element alone.
_UNARY = "negative reciprocal square sqrt rsqrt abs exp log sigmoid tanh erf relu silu".split()


def _each(functions: list[str], before: str, after: str, enables: bool = False) -> tuple[Rule, ...]:
    return tuple(_row(before.replace("F", f), after.replace("F", f), enables=enables) for f in functions)


COMMUTATIVE: tuple[Rule, ...] = (
    _row("sum(shift(a, k))", "shift(sum(a), k)", integers=True),  # (T)
    _fast("prod(exp(a))", "exp(sum(a))"),  # (T)
    # linear maps
    _row("sum(a * k)", "sum(a) * k"),
    _row("sum(a / k)", "sum(a) / k"),
    _row("sum(-a)", "-sum(a)", integers=True),
    _row("sum(a + k)", "sum(a) + n * k"),
    _row("mean(a * k)", "mean(a) * k"),
    _row("mean(a / k)", "mean(a) / k"),
    _row("mean(-a)", "-mean(a)"),
    _row("mean(a + k)", "mean(a) + k"),
    _row("mean(a - k)", "mean(a) - k"),
    _row("mean(k - a)", "k - mean(a)"),
    _row("mean(a) * k", "sum(a) * (k / n)", enables=True),
    # products
    _fast("prod(a * k)", "prod(a) * (k ** n)"),
    _fast("prod(square(a))", "square(prod(a))"),
    _fast("prod(recip(a))", "recip(prod(a))"),
    _row("prod(abs(a))", "abs(prod(a))"),
    _fast("prod(sqrt(a))", "sqrt(prod(a))", needs=("a>=0",)),
    _fast("prod(rsqrt(a))", "rsqrt(prod(a))", needs=("a>0",)),
    _row("prod(-a)", "prod(a) * ((-1) ** n)"),
    _fast("prod(a * b)", "prod(a) * prod(b)", enables=True),
    _fast("prod(a) * prod(b)", "prod(a * b)", enables=True),
    _fast("sum(log(a))", "log(prod(a))", needs=("a>0",)),
    _fast("exp(sum(log(a)))", "prod(a)", needs=("a>0",)),
    _fast("log(prod(exp(a)))", "sum(a)"),
    # rising and falling functions
    *_each(_RISING, "max(F(a))", "F(max(a))"),
    *_each(_RISING, "min(F(a))", "F(min(a))"),
    _row("max(sqrt(a))", "sqrt(max(a))", assumes=("a>=0",)),
    _row("min(sqrt(a))", "sqrt(min(a))", assumes=("a>=0",)),
    _row("max(log(a))", "log(max(a))", assumes=("a>0",)),
    _row("min(log(a))", "log(min(a))", assumes=("a>0",)),
    _row("max(a + k)", "max(a) + k"),
    _row("max(a - k)", "max(a) - k"),
    _row("max(k - a)", "k - min(a)"),
    _row("max(a * k)", "max(a) * k", needs=("k>0",)),
    _row("max(a * k)", "min(a) * k", needs=("k<0",)),
    _row("max(a / k)", "max(a) / k", needs=("k>0",)),
    _row("max(-a)", "-min(a)"),
    _row("max(recip(a))", "recip(min(a))", needs=("a>0",)),
    _row("max(rsqrt(a))", "rsqrt(min(a))", needs=("a>0",)),
    _row("max(square(a))", "square(max(a))", needs=("a>=0",)),
    _row("max(maximum(a, k))", "maximum(max(a), k)"),
    _row("max(minimum(a, k))", "minimum(max(a), k)"),
    _row("max(a + r)", "max(a) + r"),
    _row("max(a - r)", "max(a) - r"),
    _row("max(maximum(a, b))", "maximum(max(a), max(b))", enables=True),
    _row("min(a + k)", "min(a) + k"),
    _row("min(a - k)", "min(a) - k"),
    _row("min(k - a)", "k - max(a)"),
    _row("min(a * k)", "min(a) * k", needs=("k>0",)),
    _row("min(a * k)", "max(a) * k", needs=("k<0",)),
    _row("min(a / k)", "min(a) / k", needs=("k>0",)),
    _row("min(-a)", "-max(a)"),
    _row("min(recip(a))", "recip(max(a))", needs=("a>0",)),
    _row("min(rsqrt(a))", "rsqrt(max(a))", needs=("a>0",)),
    _row("min(square(a))", "square(min(a))", needs=("a>=0",)),
    _row("min(minimum(a, k))", "minimum(min(a), k)"),
    _row("min(maximum(a, k))", "maximum(min(a), k)"),
    _row("min(a + r)", "min(a) + r"),
    _row("min(a - r)", "min(a) - r"),
    # one reduction after another
    _row("sum(sum(a, 'x'), 'y')", "sum(a, 'x+y')", integers=True),
    _row("mean(mean(a, 'x'), 'y')", "mean(a, 'x+y')"),
    _row("prod(prod(a, 'x'), 'y')", "prod(a, 'x+y')", integers=True),
    _row("max(max(a, 'x'), 'y')", "max(a, 'x+y')", integers=True),
    _row("min(min(a, 'x'), 'y')", "min(a, 'x+y')", integers=True),
    # softmax does not see what is added to all its operands
    _row("softmax(a + r)", "softmax(a)"),
    _row("softmax(a - r)", "softmax(a)"),
    # data movement: arithmetic on the smaller or the joined tensor, once
    *_each(_UNARY, "slice(F(a))", "F(slice(a))"),
    *_each(_UNARY, "concat(F(a), F(b))", "F(concat(a, b))"),
    _row("slice(a * k)", "slice(a) * k"),
    _row("slice(a + k)", "slice(a) + k"),
    _row("slice(a / k)", "slice(a) / k"),
    _row("concat(a * k, b * k)", "concat(a, b) * k"),
    _row("concat(a + k, b + k)", "concat(a, b) + k"),
    _row("concat(a / k, b / k)", "concat(a, b) / k"),
    _row("transpose(a) + transpose(b)", "transpose(a + b)"),
    _row("transpose(a) - transpose(b)", "transpose(a - b)"),
    _row("transpose(a) * transpose(b)", "transpose(a * b)"),
    _row("transpose(a) / transpose(b)", "transpose(a / b)"),
    _row("maximum(transpose(a), transpose(b))", "transpose(maximum(a, b))"),
    _row("minimum(transpose(a), transpose(b))", "transpose(minimum(a, b))"),
    _row("reshape(a) + reshape(b)", "reshape(a + b)", enables=True),
    _row("reshape(a) * reshape(b)", "reshape(a * b)", enables=True),
    _row("transpose(a) * k", "transpose(a * k)", enables=True),
    _row("transpose(a) / k", "transpose(a / k)", enables=True),
    _row("reshape(a) * k", "reshape(a * k)", enables=True),
    _row("reshape(a) / k", "reshape(a / k)", enables=True),
    _row("reshape(a * v)", "reshape(a) * v", needs=("v is a row",), enables=True),
    _row("reshape(a + v)", "reshape(a) + v", needs=("v is a row",), enables=True),
    _row("matmul(a, b * k)", "matmul(a, b) * k", enables=True),
)
