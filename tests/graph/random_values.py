"""Draws graphs of reductions, choices, gathers, scatters, truths and views, with NumPy's value of every tensor.

Numbers are small integers in every type, so that sums are exact and results can be compared as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

op = relax.op
Array = np.ndarray
Build = Callable[..., relax.Expr]
Step = Callable[["Draw", Array], tuple[Build, Sequence[Array], Array] | None]
"""Of a tensor: how a result is built of operands, these operands, and its value; None where it does not apply."""

TYPES = ("float32", "float32", "float32", "int32", "int64", "int8", "uint8", "bool", "bool")
EXTENTS = (1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 64, 65)
MOST_ELEMENTS, MOST = 3000, 1 << 20
"""Elements of a tensor, and magnitude of a number."""


@dataclass
class Draw:
    """What has been drawn so far.

    Attributes
    ----------
    random : generator
    pool : list of arrays
        All tensors, inputs first.
    """

    random: np.random.Generator
    pool: list[Array]

    def below(self, bound: int) -> int:
        return int(self.random.integers(bound))

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def numbers(self, shape: Sequence[int], dtype: str) -> Array:
        if dtype == "bool":
            return self.random.integers(0, 2, shape).astype(bool)
        return self.random.integers(0 if dtype == "uint8" else -5, 9, shape).astype(dtype)

    def partner(self, value: Array) -> Array:
        """Give another tensor of the type, or new numbers, that broadcast to a tensor's shape."""

        def fits(other: Array) -> bool:
            pairs = zip(other.shape[::-1], value.shape[::-1], strict=False)
            return other.dtype == value.dtype and other.ndim <= value.ndim and all(a in (1, b) for a, b in pairs)

        known = [other for other in self.pool if fits(other)]
        if self.random.random() < 0.7:
            return self.pick(known)
        shape = [extent if self.below(2) else 1 for extent in value.shape]
        return self.numbers(shape[self.below(value.ndim) :], str(value.dtype))


def is_number(value: Array) -> bool:
    return value.dtype != bool


def elementwise(d: Draw, x: Array) -> Any:
    y = d.partner(x)
    if not is_number(x):
        name, function = d.pick((("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)))
        return getattr(op, f"logical_{name}"), [x, y], function(x, y)
    names = ("add", "subtract", "multiply", "maximum", "minimum")
    name = d.pick(names)
    return getattr(op, name), [x, y], getattr(np, name)(x, y)


def unary(d: Draw, x: Array) -> Any:
    if not is_number(x):
        return op.logical_not, [x], ~x
    if x.dtype == np.uint8:
        return op.bitwise_not, [x], ~x
    name = d.pick(("negative", "abs", "sign"))
    return getattr(op, name), [x], getattr(np, name)(x)


def compared(d: Draw, x: Array) -> Any:
    y, name = d.partner(x), d.pick(("less", "greater_equal", "equal", "not_equal"))
    return (getattr(op, name), [x, y], getattr(np, name)(x, y)) if is_number(x) else None


def chosen(d: Draw, x: Array) -> Any:
    y = d.partner(x)
    truths = [t for t in d.pool if t.dtype == bool and t.ndim <= x.ndim]
    fitting = [t for t in truths if all(a in (1, b) for a, b in zip(t.shape[::-1], x.shape[::-1], strict=False))]
    condition = d.pick(fitting) if fitting else d.numbers(x.shape[-1:], "bool")
    return op.where, [condition, x, y], np.where(condition, x, y)


def cast(d: Draw, x: Array) -> Any:
    dtype = d.pick(TYPES)
    if x.dtype == np.float32 and dtype != "bool" and (x.min() < (0 if dtype == "uint8" else -100) or x.max() > 100):
        return None  # C leaves open what is out of range
    return lambda t: op.astype(t, dtype), [x], x.astype(dtype)


def reduced(d: Draw, x: Array) -> Any:
    axes = [axis for axis in range(x.ndim) if d.below(2)] or [d.below(x.ndim)]
    keepdims, name = bool(d.below(2)), d.pick(("sum", "max", "min"))
    if not is_number(x):
        return None
    value = getattr(np, name)(x, axis=tuple(axes), keepdims=keepdims, **({"dtype": x.dtype} if name == "sum" else {}))
    return lambda t: getattr(op, name)(t, [axis - x.ndim for axis in axes], keepdims), [x], np.asarray(value)


def place_of_extreme(d: Draw, x: Array) -> Any:
    axis, name, keepdims = d.below(x.ndim), d.pick(("argmax", "argmin")), bool(d.below(2))
    if not is_number(x):
        return None
    return lambda t: getattr(op, name)(t, axis - x.ndim, keepdims), [x], getattr(np, name)(x, axis, keepdims=keepdims)


def running(d: Draw, x: Array) -> Any:
    axis = d.below(x.ndim)
    if x.dtype not in (np.float32, np.int32, np.int64):
        return None
    return lambda t: op.cumsum(t, axis), [x], np.cumsum(x, axis, dtype=x.dtype)


def taken(d: Draw, x: Array) -> Any:
    axis = d.below(x.ndim)
    places = d.random.integers(0, x.shape[axis], [1 + d.below(4) for _ in range(1 + d.below(2))]).astype("int64")
    return lambda t, p: op.take(t, p, axis), [x, places], np.take(x, places, axis)


def gathered(d: Draw, x: Array) -> Any:
    axis, shape = d.below(x.ndim), [1 + d.below(extent) for extent in x.shape]
    places = d.random.integers(0, x.shape[axis], shape).astype("int64")
    rest = tuple(slice(0, extent) for extent in shape[:axis]), tuple(slice(0, extent) for extent in shape[axis + 1 :])
    return (
        lambda t, p: op.gather_elements(t, p, axis), [x, places],
        np.take_along_axis(x[(*rest[0], slice(None), *rest[1])], places, axis),
    )  # fmt: skip


def scattered(d: Draw, x: Array) -> Any:
    rows = 1 + d.below(5)
    places = d.random.integers(0, x.shape[0], (rows, 1)).astype("int64")
    news = d.numbers((rows, *x.shape[1:]), str(x.dtype))
    if not is_number(x):
        return None
    name, function = d.pick((("add", np.add), ("max", np.maximum), ("min", np.minimum)))
    value = x.copy()
    function.at(value, places[:, 0], news)
    return lambda t, p, u: op.scatter_nd(t, p, u, name), [x, places, news], value


def ordered(d: Draw, x: Array) -> Any:
    axis, descending = d.below(x.ndim), bool(d.below(2))
    if x.dtype.itemsize == 1:
        return None  # TVM's kernels do not sort bytes
    value = np.sort(x, axis)
    return lambda t: op.sort(t, axis, descending), [x], np.flip(value, axis) if descending else value


def regrouped(d: Draw, x: Array) -> Any:
    rest, shape = x.size, list[int]()
    for _ in range(d.below(3)):
        shape.append(d.pick([factor for factor in range(1, rest + 1) if rest % factor == 0]))
        rest //= shape[-1]
    shape.insert(d.below(len(shape) + 1), rest)
    return lambda t: op.reshape(t, shape), [x], x.reshape(shape)


def transposed(d: Draw, x: Array) -> Any:
    axes = [int(axis) for axis in d.random.permutation(x.ndim)]
    return lambda t: op.permute_dims(t, axes), [x], x.transpose(axes)


def sliced(d: Draw, x: Array) -> Any:
    axis, step = d.below(x.ndim), 1 + d.below(3)
    begin, end = sorted((d.below(x.shape[axis]), 1 + d.below(x.shape[axis])))
    if begin == end:
        return None
    return (
        lambda t: op.strided_slice(t, [axis], [begin], [end], [step]), [x],
        np.take(x, range(begin, end, step), axis),
    )  # fmt: skip


def joined(d: Draw, x: Array) -> Any:
    axis, alike = d.below(x.ndim), [y for y in d.pool if y.shape == x.shape and y.dtype == x.dtype]
    parts = [x, *(d.pick(alike) for _ in range(1 + d.below(3)))]
    return lambda *t: op.concat(list(t), axis), parts, np.concatenate(parts, axis)


def padded(d: Draw, x: Array) -> Any:
    widths = [(d.below(3), d.below(3)) for _ in x.shape]
    if not is_number(x):
        return None
    flat = [width for pair in widths for width in pair]
    return lambda t: op.nn.pad(t, flat, pad_value=2.0), [x], np.pad(x, widths, constant_values=2)


def repeated(d: Draw, x: Array) -> Any:
    counts = [1 + d.below(2) for _ in x.shape]
    return lambda t: op.tile(t, counts), [x], np.tile(x, counts)


def flipped(d: Draw, x: Array) -> Any:
    axis = d.below(x.ndim)
    return lambda t: op.flip(t, axis), [x], np.flip(x, axis)


STEPS: tuple[Step, ...] = (
    *(elementwise, unary, compared, chosen, chosen, cast) * 2,
    *(reduced, reduced, reduced, place_of_extreme, running, taken, gathered, scattered, ordered),
    *(regrouped, regrouped, transposed, sliced, joined, joined, padded, repeated, flipped),
)


@dataclass(frozen=True)
class Drawn:
    """A module, the inputs of its function ``main``, and what that returns."""

    module: tvm.IRModule
    inputs: list[Array]
    results: list[Array]
    steps: list[str]


def draw(seed: int) -> Drawn:
    """Draw a graph of three to nine steps, of which those that no other reads are the results, and others as well."""
    d = Draw(np.random.default_rng(seed), [])
    for _ in range(1 + d.below(2)):
        shape = [d.pick(EXTENTS) for _ in range(1 + d.below(3))]
        while np.prod(shape) > MOST_ELEMENTS:
            shape[d.below(len(shape))] = 2
        d.pool.append(d.numbers(d.pool[0].shape if d.pool and d.below(2) else shape, d.pick(TYPES)))
    inputs, builder, steps = list(d.pool), relax.BlockBuilder(), list[str]()
    variables = [relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(inputs)]
    exprs: dict[int, relax.Expr] = {id(x): variable for x, variable in zip(inputs, variables, strict=True)}
    read: set[int] = set()
    with builder.function("main", variables):
        with builder.dataflow():
            wanted = 3 + d.below(7)
            while len(steps) < wanted:
                x = d.pool[-1] if d.below(3) else d.pick(d.pool)
                step = d.pick(STEPS)
                made = step(d, x) if x.ndim else None
                if made is None or not 0 < made[2].size <= MOST_ELEMENTS or abs(made[2].astype("float64")).max() > MOST:
                    continue
                build, operands, value = made
                value = np.array(value)  # an array of its own, known by its identity
                arguments = [exprs.get(id(y), relax.const(y, str(y.dtype))) for y in operands]
                exprs[id(value)] = builder.emit(build(*arguments))
                read |= {id(y) for y in operands if id(y) in exprs}
                d.pool.append(value)
                steps.append(f"{step.__name__} {value.dtype}{list(value.shape)}")
            results = [y for y in d.pool[len(inputs) :] if id(y) not in read or d.below(8) == 0]
            returned = builder.emit_output(relax.Tuple([exprs[id(y)] for y in results]))
        builder.emit_func_output(returned)
    return Drawn(builder.get(), inputs, results, steps)
