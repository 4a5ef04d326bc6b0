"""Lanes of blocked tensors that belong to no channel: bounds by arithmetic, and nothing that leaks out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tests.layout.lane_graphs import ChainBuilder, random_inputs
from tests.modules import STOCK
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.layout import lanes as arithmetic
from tvm_ext.layout.lanes import LARGEST, ZERO, Lanes
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.layout.relax.rules import take
from tvm_ext.schedules.cpu.machine import machine_of

torch = pytest.importorskip("torch", reason="these tests compare with torch")

LEVELS = ("skylake-avx512", "haswell", "x86-64-v2")
FUNCTIONS: dict[str, Any] = {
    "relax.abs": torch.abs,
    "relax.clip": lambda x: torch.clip(x, -1.0, 6.0),
    "relax.erf": torch.erf,
    "relax.exp": torch.exp,
    "relax.log": torch.log,
    "relax.negative": torch.negative,
    "relax.nn.gelu": torch.nn.functional.gelu,
    "relax.nn.gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relax.nn.leakyrelu": lambda x: torch.nn.functional.leaky_relu(x, -0.3),
    "relax.nn.relu": torch.relu,
    "relax.nn.silu": torch.nn.functional.silu,
    "relax.nn.softplus": lambda x: torch.nn.functional.softplus(x, 2.0, 5.0),
    "relax.round": torch.round,
    "relax.rsqrt": torch.rsqrt,
    "relax.sigmoid": torch.sigmoid,
    "relax.sqrt": torch.sqrt,
    "relax.square": torch.square,
    "relax.tanh": torch.tanh,
    "relax.add": torch.add,
    "relax.subtract": torch.subtract,
    "relax.multiply": torch.multiply,
    "relax.divide": torch.divide,
    "relax.maximum": torch.maximum,
    "relax.minimum": torch.minimum,
    "relax.power": torch.pow,
}
PARAMETERS = {"min": -1.0, "max": 6.0, "alpha": -0.3, "beta": 2.0, "threshold": 5.0}

ends = st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.75, 6.0, 1e-6, -1e-3, 30.0]) | st.floats(-40, 40, width=32)
intervals = st.tuples(ends, ends).map(lambda pair: Lanes(min(pair), max(pair)))


def host_levels() -> list[str]:
    """List the x86 levels that this machine can run."""
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(native_target())}
    return [level for level in LEVELS if level != LEVELS[0] or "avx512vl" in features]


def runnable(level: str) -> str:
    """Skip a test whose code this machine cannot run."""
    if level not in host_levels():
        pytest.skip(f"this machine cannot run code for {level}")
    return level


def test_every_operator_is_compared() -> None:
    assert set(FUNCTIONS) == {*arithmetic.UNARY, *arithmetic.BINARY}


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(FUNCTIONS)), left=intervals, right=intervals, half=st.booleans(), seed=st.integers(0, 9)
)
def test_bounds_hold(name: str, left: Lanes, right: Lanes, half: bool, seed: int) -> None:
    """Whatever the lanes hold within their bounds, the operator's results are within those computed for it."""
    dtype = torch.float16 if half else torch.float32
    if name in arithmetic.UNARY:
        bounds = arithmetic.unary(name, left, str(dtype).removeprefix("torch."), PARAMETERS)
    else:
        bounds = arithmetic.binary(name, left, right, str(dtype).removeprefix("torch."))
    if bounds is None:
        return
    random = np.random.default_rng(seed)
    operands = []
    for lanes in (left, right):
        inside = torch.tensor([lanes.low, lanes.high, *random.uniform(lanes.low, lanes.high, 62)]).to(dtype)
        inside = inside[(inside.double() >= lanes.low) & (inside.double() <= lanes.high)]
        if not len(inside):  # no number of half precision lies between them
            return
        operands.append(inside[torch.from_numpy(random.integers(len(inside), size=64))])
    result = FUNCTIONS[name](*operands[: 1 if name in arithmetic.UNARY else 2]).double().numpy()
    assert np.isfinite(result).all()
    assert bounds.low <= result.min()
    assert result.max() <= bounds.high


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("relax.sqrt", Lanes(-1, -1)), ("relax.log", ZERO), ("relax.rsqrt", ZERO), ("relax.exp", Lanes(0, 90)),
        ("relax.square", Lanes(0, 40)), ("relax.log", Lanes(-1, 1)),
    ],
)  # fmt: skip
def test_what_may_be_nan_or_overflow_is_unknown(name: str, lanes: Lanes) -> None:
    assert arithmetic.unary(name, lanes, "float32", {}) is None


def test_divisions_and_powers_of_zero_are_unknown() -> None:
    assert arithmetic.binary("relax.divide", ZERO, ZERO, "float32") is None
    assert arithmetic.binary("relax.divide", Lanes(1, 1), Lanes(-1, 1), "float32") is None
    assert arithmetic.binary("relax.power", ZERO, Lanes(-1, -1), "float32") is None
    assert arithmetic.binary("relax.multiply", Lanes(LARGEST, LARGEST), Lanes(2, 2), "float32") is None
    assert arithmetic.binary("relax.add", ZERO, arithmetic.ANYTHING, "float32") is None
    assert arithmetic.unary("relax.exp", ZERO, "float32", {}) is not None


def test_integers_are_bounded_by_their_type() -> None:
    assert arithmetic.binary("relax.add", Lanes(100, 100), Lanes(100, 100), "int8") == Lanes(-128, 127)
    assert arithmetic.quantize(None, 0.1, 3, "uint8") == Lanes(0, 255)
    assert arithmetic.quantize(ZERO, 0.1, 3, "uint8") == Lanes(2, 4)
    assert arithmetic.cast(Lanes(-3e9, 3e9), "float32") is None


def bound_variables(mod: tvm.IRModule) -> list[relax.Var]:
    """List the variables of ``main`` in the order of their bindings."""
    return [binding.var for block in mod["main"].body.blocks for binding in block.bindings]


def blocked_values(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[tvm.IRModule, list[Blocked]]:
    """Put a module into the blocked layout; its ``main`` then returns every tensor that the pass describes."""
    rewriter = BlockedLayoutMutator(mod, machine_of(target), take, winograd=False)
    (global_var,) = mod.get_global_vars()
    rewriter.builder_.update_func(global_var, rewriter.visit_expr(mod[global_var]))
    mod = rewriter.builder_.finalize()
    values = [item for value in rewriter.blocked.values() for item in (value if isinstance(value, tuple) else (value,))]
    before = bound_variables(mod)  # names are not unique
    values = [value for value in values if any(value.var.same_as(var) for var in before)]
    mod = relax.transform.ToNonDataflow()(mod)
    after, function = bound_variables(mod), mod["main"]
    places = [next(place for place, var in enumerate(before) if value.var.same_as(var)) for value in values]
    outputs = relax.Tuple([after[place] for place in places])
    body = relax.SeqExpr(function.body.blocks, outputs)
    mod["main"] = relax.Function(function.params, body, relax.TupleType([var.ty for var in outputs.fields]))
    return mod, values


def check_lanes(seed: int) -> None:
    """Run a chain on inputs with NaN and infinities, and look at the lanes of every blocked tensor in it."""
    random = np.random.default_rng(seed)
    chain = ChainBuilder(random, rank=(4, 4, 3, 5)[seed % 4])
    level = tvm.target.Target({"kind": "llvm", "mcpu": host_levels()[seed % len(host_levels())], "num-cores": 1})
    mod, values = blocked_values(chain.build(), level)
    if not values:
        pytest.skip("all convolutions of this chain have groups that do not fill vectors: nothing is blocked")
    machine = relax.VirtualMachine(tvm.compile(mod, STOCK), tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, random_inputs(random, chain.inputs, special=True)))
    for value, output in zip(values, outputs, strict=True):
        array = np.moveaxis(output.numpy(), -1, 2)
        lanes = array.reshape(array.shape[0], -1, *array.shape[3:])[:, value.channels :].astype("float64")
        assert np.isfinite(lanes).all(), value
        assert not lanes.size or (value.lanes.low <= lanes.min() and lanes.max() <= value.lanes.high), value


@pytest.mark.parametrize("seed", range(3))
def test_lanes_hold_what_is_said(seed: int) -> None:
    check_lanes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 64))
def test_lanes_hold_what_is_said_at_length(seed: int) -> None:
    check_lanes(seed)


def run(mod: tvm.IRModule, inputs: list[np.ndarray], level: str, **options: Any) -> list[np.ndarray]:
    """Run a module compiled by our pipeline for an x86 level."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": level, "num-cores": 2})
    with target:
        executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_ext", **options))
    outputs = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return [output.numpy() for output in outputs]


def compare(result: np.ndarray, expected: np.ndarray, nearby: np.ndarray) -> None:
    """Compare two results; ``nearby``: those expected for inputs that differ by a rounding."""
    for kind in (np.isnan, np.isposinf, np.isneginf):
        settled = kind(expected) == kind(nearby)
        if settled.mean() > 0.99:  # else a pole was met
            np.testing.assert_array_equal(kind(result)[settled], kind(expected)[settled])
    finite = np.isfinite(expected) & np.isfinite(nearby) & np.isfinite(result)
    if finite.any():
        result, expected, nearby = (array[finite].astype("float64") for array in (result, expected, nearby))
        size = np.sqrt(np.mean(np.minimum(np.abs(expected), 1e150) ** 2))
        tolerance = 1e-4 * (size + np.abs(expected)) + 300 * np.abs(expected - nearby).max() + 1e-30
        assert (np.abs(result - expected) <= tolerance).all()


def check_chain(seed: int, level: str) -> None:
    """Compare a random chain with TVM's own compilation; with NaN and infinities (odd seeds), with plain layouts.

    TVM loses NaN in maxima and minima, so that its results depend on what it fuses.
    """
    random = np.random.default_rng(seed)
    special = seed % 2 == 1
    chain = ChainBuilder(random, rank=(4, 4, 4, 3, 5)[seed % 5], steps=6)
    mod = chain.build()
    inputs = random_inputs(random, chain.inputs, special)
    near = [(array * np.float32(1 + 3e-7)).astype("float32") for array in inputs]
    if special:
        expected, nearby = (run(mod, arrays, level, disable=("layout",)) for arrays in (inputs, near))
    else:
        stock = relax.VirtualMachine(tvm.compile(mod, STOCK), tvm.cpu())["main"]
        expected, nearby = ([o.numpy() for o in stock(*map(tvm.runtime.tensor, arrays))] for arrays in (inputs, near))
    # Winograd's algorithm mixes neighbours before it separates them: an infinite one makes NaN of them all.
    for ours, theirs, other in zip(run(mod, inputs, level, winograd=not special), expected, nearby, strict=True):
        compare(ours, theirs, other)


@pytest.mark.parametrize("seed", range(2))
def test_random_chains(seed: int) -> None:
    levels = host_levels()
    check_chain(seed, levels[seed % len(levels)])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(10, 60))
def test_random_chains_at_length(seed: int, level: str) -> None:
    check_chain(seed, runnable(level))


ARITHMETIC = {
    "sqrt": lambda x, v: torch.sqrt(x + v - 1),
    "log": lambda x, v: torch.log(x + v) / 2,
    "quotient": lambda x, v: v / (x + v),
    "power": lambda x, v: (x + v) ** -0.5,
    "overflow": lambda x, v: torch.exp(torch.exp(v - x) * 1e-3),
    "own quotient": lambda x, v: x / torch.exp(x) / (x * x + x + v),
    "spatial attention": lambda x, v: x * torch.sigmoid(x.mean(1, keepdim=True)),
    "scalar": lambda x, v: x / x.amax() + x.amin(),
}


class Between(torch.nn.Module):
    """Two convolutions with arithmetic of each kind between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.last = torch.nn.Conv2d(3, channels, 3), torch.nn.Conv2d(channels, 4, 3)
        self.vector = torch.nn.Parameter(torch.full((channels, 1, 1), 10.0))

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        features = torch.relu(self.first(image))
        return [self.last(function(features, self.vector)) for function in ARITHMETIC.values()]


class Gate(torch.nn.Module):
    """A gate of one channel for a few: both have blocks of the same size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.stem, self.gate = torch.nn.Conv2d(3, channels, 3), torch.nn.Conv2d(channels, 1, 1)

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        features = self.stem(image)
        return [features * torch.sigmoid(self.gate(features)) - self.gate(features)]


def check_module(module: torch.nn.Module, level: str) -> None:
    """Compare a module of an image with torch."""
    module, image = module.eval(), torch.randn(2, 3, 7, 9)
    with torch.no_grad():
        expected = [tensor.numpy() for tensor in module(image)]
    target = {"kind": "llvm", "mcpu": level, "num-cores": 1}
    results = tvm_ext.compile(module, target, example_inputs=(image,)).run([image.numpy()]).values()
    for result, tensor in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, tensor, rtol=1e-4, atol=1e-4 * np.abs(tensor).max())


@pytest.mark.parametrize(("channels", "level"), [(3, "skylake-avx512"), (30, "x86-64-v2"), (5, "haswell")])
def test_arithmetic_between_convolutions(channels: int, level: str) -> None:
    """What stands in the unused lanes of the first convolution's result must not reach the second's."""
    check_module(Between(channels), runnable(level))


@pytest.mark.parametrize(("channels", "level"), [(4, "skylake-avx512"), (2, "x86-64-v2"), (2, "haswell")])
def test_one_channel_meets_many(channels: int, level: str) -> None:
    """One channel in a block that it does not fill must not be read as the channels of a full one."""
    check_module(Gate(channels), runnable(level))


def test_infinities_do_not_leave_their_channel() -> None:
    """An infinite input makes NaN of lanes with weights of zero, and something else of the channels."""

    def build(values: np.ndarray) -> tvm.IRModule:
        builder = relax.BlockBuilder()
        data = relax.Var("data", relax.TensorType((1, 3, 5, 5), "float32"))
        with builder.function("main", [data]):
            with builder.dataflow():
                first = builder.emit(relax.op.nn.conv2d(data, relax.const(-np.abs(values[:30, :3]))))
                first = builder.emit(relax.op.sigmoid(first))
                last = builder.emit(relax.op.nn.conv2d(first, relax.const(values[:5, :30])))
                result = builder.emit_output(relax.Tuple([last]))
            builder.emit_func_output(result)
        return builder.finalize()

    random = np.random.default_rng(0)
    mod = build(random.standard_normal((30, 30, 1, 1)).astype("float32"))
    data = random.standard_normal((1, 3, 5, 5)).astype("float32")
    data[0, 1, 2, 3] = np.inf
    (expected,) = run(mod, [data], "x86-64-v2", disable=("layout",))
    assert np.isfinite(expected).all()
    for level in host_levels():
        np.testing.assert_allclose(run(mod, [data], level)[0], expected, rtol=1e-4, atol=1e-5)
