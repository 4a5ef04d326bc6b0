"""Random chains of operators around convolutions, with channels that do not fill vectors, for tests of the layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

CHANNELS = (1, 2, 3, 5, 7, 10, 16, 17, 24, 30, 31, 33)
UNARY = (
    "nn.relu", "nn.leakyrelu", "nn.silu", "nn.gelu", "nn.gelu_tanh", "nn.softplus", "sigmoid", "tanh", "exp", "sqrt",
    "log", "rsqrt", "abs", "negative", "erf", "square", "sin", "cos",
)  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")


@dataclass
class ChainBuilder:
    """Draws one function; spatial extents have ``rank - 2`` axes.

    Attributes
    ----------
    generator : np.random.Generator
    rank : int
        3, 4 or 5.
    inputs : list of tuple of int
        Shapes of the parameters so far.
    """

    generator: np.random.Generator
    rank: int = 4
    steps: int = 8
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    params: list[relax.Var] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.values: list[relax.Var] = []
        self.log: list[str] = []

    def build(self) -> tvm.IRModule:
        """Draw a module whose ``main`` returns a tuple of float32 tensors."""
        spatial = [int(self.draw((1, 2, 5, 6, 9, 13))) for _ in range(self.rank - 2)]
        batch = int(self.draw((1, 1, 2, 3)))
        first = self.parameter((batch, int(self.draw((1, 3, 5, 16, 20))), *spatial))
        # The function is opened once its parameters are known; scalars and images are drawn beforehand.
        extra = [self.parameter(shape) for shape in ((), (1,) * self.rank, (batch, 1, *spatial))]
        with self.builder.function("main", self.params):
            with self.builder.dataflow():
                self.values = [self.convolution(first)]
                for _ in range(self.steps):
                    value = self.step(extra)
                    if value is not None:
                        self.values.append(value)
                used = [self.convolution(self.values[-1]), self.pick()]
                if self.generator.random() < 0.5:
                    used.append(self.emit(relax.op.mean(self.pick(), axis=1, keepdims=True)))
                if self.generator.random() < 0.3:
                    used.append(self.emit(relax.op.nn.softmax(self.pick(), axis=1)))
                output = self.builder.emit_output(relax.Tuple(used))
            self.builder.emit_func_output(output)
        return self.builder.finalize()

    def draw(self, items: Any) -> Any:
        """Draw one item."""
        return items[int(self.generator.integers(len(items)))]

    def parameter(self, shape: tuple[int, ...]) -> relax.Var:
        """Add a parameter."""
        self.inputs.append(shape)
        self.params.append(relax.Var(f"p{len(self.params)}", relax.TensorType(shape, "float32")))
        return self.params[-1]

    def emit(self, call: relax.Expr) -> relax.Var:
        """Emit a call and note it."""
        var = self.builder.emit(call)
        self.log.append(f"{var.name} = {call}")
        return var

    def pick(self) -> relax.Var:
        """Draw a value, a late one more often."""
        return self.values[-1] if self.generator.random() < 0.6 else self.draw(self.values)

    def constant(self, shape: tuple[int, ...]) -> relax.Constant:
        """Draw a constant: ordinary numbers, with zeros and large ones at times."""
        values = np.asarray(self.generator.standard_normal(shape) * self.draw((0.5, 1, 10))).astype("float32")
        if self.generator.random() < 0.2 and values.size > 1:
            values = np.where(self.generator.random(shape) < 0.3, np.float32(0), values).astype("float32")
        return relax.const(values, "float32")

    def step(self, extra: list[relax.Var]) -> relax.Var | None:
        """Draw one operator."""
        kinds = ("unary",) * 5 + ("binary",) * 6 + ("convolution",) * 4 + ("pool", "average", "concat", "split", "cast")
        kind = self.draw(kinds)
        value = self.pick()
        if kind == "unary":
            return self.unary(value)
        if kind == "binary":
            return self.binary(value, extra)
        return getattr(self, kind)(value)

    def unary(self, value: relax.Var) -> relax.Var:
        if self.generator.random() < 0.1:
            return self.emit(relax.op.clip(value, -1, 6))
        name = self.draw(UNARY)
        operator = relax.op
        for part in name.split("."):
            operator = getattr(operator, part)
        if name == "nn.softplus" and self.generator.random() < 0.3:
            return self.emit(operator(value, beta=2.0, threshold=5.0))
        return self.emit(operator(value))  # type: ignore[operator]

    def binary(self, value: relax.Var, extra: list[relax.Var]) -> relax.Var:
        shape = [int(extent) for extent in value.ty.shape]
        spatial = [1] * (self.rank - 2)
        others: list[Any] = [
            lambda: self.constant(()),
            lambda: self.constant((shape[1], *spatial)),
            lambda: self.constant((1, shape[1], *spatial)),
            lambda: self.constant(tuple(shape)),
            lambda: self.constant((1, 1, *shape[2:])),
            lambda: self.constant(tuple(shape[2:])),
            lambda: extra[int(self.generator.integers(2))],
            lambda: self.convolution(value, out_channels=1, pointwise=True),
            lambda: self.emit(relax.op.mean(value, axis=list(range(2, self.rank)), keepdims=True)),
            lambda: self.emit(relax.op.max(value, axis=1, keepdims=True)),
            lambda: value,
        ]
        image = [int(extent) for extent in extra[2].ty.shape]
        if image[0] == shape[0] and image[2:] == shape[2:]:
            others += [lambda: extra[2]] * 2
        for candidate in self.values:
            extents = [int(extent) for extent in candidate.ty.shape]
            if extents == shape or (
                extents[0] == shape[0] and extents[1] in (1, shape[1]) and extents[2:] == shape[2:]
            ):
                others += [lambda candidate=candidate: candidate] * 2
        operands = [value, self.draw(others)()]
        if self.generator.random() < 0.3:
            operands.reverse()
        # What TVM itself computes depends on what is fused: x - x is zero and x - (x + c) is -c, whatever x is; which
        # operand of a maximum counts as the other one when one is NaN; and a power of almost -1 is NaN or not.
        names = [name for name in BINARY if name != "power"]
        if all(isinstance(operand, relax.Var) and operand not in extra for operand in operands):
            names.remove("subtract")
        if any(int(np.prod([int(extent) for extent in operand.ty.shape])) == 1 for operand in operands):
            names = names[:4]
        if self.generator.random() < 0.1:
            return self.emit(relax.op.power(self.emit(relax.op.nn.softplus(operands[0])), operands[1]))
        return self.emit(getattr(relax.op, self.draw(names))(*operands))

    def convolution(self, value: relax.Var, out_channels: int = 0, pointwise: bool = False) -> relax.Var:
        _, channels, *spatial = (int(extent) for extent in value.ty.shape)
        rank = len(spatial)
        groups = 1
        if not out_channels:
            out_channels = int(self.draw(CHANNELS))
            kind = self.generator.random()
            if kind < 0.25:
                groups, out_channels = channels, channels * int(self.draw((1, 1, 2, 3)))
            elif kind < 0.4:
                groups = int(self.draw([g for g in range(1, channels + 1) if channels % g == 0]))
                out_channels = groups * int(self.draw((1, 2, 3, 8)))
            elif kind < 0.5 and rank == 2:
                return self.transposed(value)
        kernel = [1 if pointwise else int(self.draw((1, 1, 3, 3, 2, 5))) for _ in spatial]
        dilation = [1 if pointwise else int(self.draw((1, 1, 1, 2))) for _ in spatial]
        strides = [1 if pointwise else int(self.draw((1, 1, 1, 2, 3))) for _ in spatial]
        before, after = [], []
        for extent, taps, step in zip(spatial, kernel, dilation, strict=True):
            reach = (taps - 1) * step
            same = pointwise or self.generator.random() < 0.7
            first = reach // 2 if same else int(self.generator.integers(0, reach + 2))
            last = reach - first if same else int(self.generator.integers(0, reach + 2))
            if extent + first + last <= reach:
                last = reach + 1 - extent - first
            before.append(first)
            after.append(last)
        weight = self.generator.standard_normal((out_channels, channels // groups, *kernel)) / np.sqrt(
            channels / groups * np.prod(kernel)
        )
        operator = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}[rank]
        result = self.emit(
            operator(value, relax.const(weight.astype("float32")), strides, before + after, dilation, groups)
        )
        if self.generator.random() < 0.5:
            result = self.emit(relax.op.add(result, self.constant((1, out_channels, *[1] * rank))))
        return result

    def transposed(self, value: relax.Var) -> relax.Var:
        channels, out_channels = int(value.ty.shape[1]), int(self.draw(CHANNELS))
        kernel, strides = (
            [int(self.draw((1, 2, 3, 4))) for _ in range(2)],
            [int(self.draw((1, 2, 3))) for _ in range(2)],
        )
        weight = self.generator.standard_normal((channels, out_channels, *kernel)) / np.sqrt(channels * 4)
        return self.emit(relax.op.nn.conv2d_transpose(value, relax.const(weight.astype("float32")), strides))

    def pool(self, value: relax.Var) -> relax.Var | None:
        if self.rank == 3:
            return None
        spatial = [int(extent) for extent in value.ty.shape][2:]
        kernel = [min(int(self.draw((1, 2, 3))), extent) for extent in spatial]
        strides = [int(self.draw((1, 2, 3))) for _ in spatial]
        padding = [int(self.generator.integers(0, taps)) for taps in kernel * 2]
        ceil_mode = bool(self.generator.random() < 0.3)
        name = self.draw(("max_pool", "avg_pool")) + f"{self.rank - 2}d"
        more = {"count_include_pad": bool(self.generator.random() < 0.5)} if "avg" in name else {}
        operator = getattr(relax.op.nn, name)
        return self.emit(operator(value, kernel, strides, padding, ceil_mode=ceil_mode, **more))

    def average(self, value: relax.Var) -> relax.Var | None:
        if self.rank == 3:
            return self.emit(relax.op.mean(value, axis=[2], keepdims=True))
        return self.emit(relax.op.mean(value, axis=list(range(2, self.rank)), keepdims=True))

    def concat(self, value: relax.Var) -> relax.Var:
        shape = [int(extent) for extent in value.ty.shape]
        fitting = [v for v in self.values if [int(e) for e in v.ty.shape][2:] == shape[2:]]
        fitting = [v for v in fitting if int(v.ty.shape[0]) == shape[0] and int(v.ty.shape[1]) < 70]
        return self.emit(relax.op.concat([value, *(self.draw(fitting or [value]) for _ in range(2))], axis=1))

    def split(self, value: relax.Var) -> relax.Var | None:
        channels = int(value.ty.shape[1])
        sections = [part for part in (2, 3, 4) if channels % part == 0]
        if not sections:
            return None
        parts = int(self.draw(sections))
        items = self.emit(relax.op.split(value, parts, axis=1))
        return self.emit(relax.TupleGetItem(items, int(self.generator.integers(parts))))

    def cast(self, value: relax.Var) -> relax.Var:
        return self.emit(relax.op.astype(self.emit(relax.op.astype(value, "float16")), "float32"))


def random_inputs(generator: np.random.Generator, shapes: list[tuple[int, ...]], special: bool) -> list[np.ndarray]:
    """Draw inputs; ``special`` ones have NaN and infinities among them."""
    arrays = [np.asarray(generator.standard_normal(shape), "float32") for shape in shapes]
    if special:
        for array in arrays:
            where = generator.random(array.shape)
            for index, value in enumerate((np.nan, np.inf, -np.inf)):
                share = 0.02 if array.size > 1 else 0.2
                array[(where > index * share) & (where < (index + 1) * share)] = value
    return arrays
