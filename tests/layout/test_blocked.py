"""The blocked-layout pass with its convolution and window kernels, against torch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="these tests compare with torch")
import tvm  # noqa: E402
from torch import nn  # noqa: E402

import tvm_ext  # noqa: E402
from tvm_ext.layout.convolution_plan import channel_block  # noqa: E402
from tvm_ext.layout.relax.blocked_layout import blocked_layout  # noqa: E402
from tvm_ext.passes.fold_constants import fold_constants  # noqa: E402
from tvm_ext.schedules.cpu.machine import Machine  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

TOLERANCE = 2e-5  # of the output's standard deviation
TARGETS = {
    "native": None,
    "avx2": {"kind": "llvm", "mcpu": "haswell", "num-cores": 2},
    "sse4": {"kind": "llvm", "mcpu": "nehalem", "num-cores": 2},
}


def check(module: nn.Module, *inputs: torch.Tensor, target: object = None) -> tvm_ext.CompiledModel:
    """Compile a module, with direct convolutions only, and compare its outputs with torch's."""
    module = module.eval()
    with torch.no_grad():
        expected = module(*inputs)
    compiled = tvm_ext.compile(module, target, example_inputs=inputs, winograd=False)
    (result,) = compiled.run([tensor.numpy() for tensor in inputs]).values()
    assert result.shape == tuple(expected.shape)
    error = np.abs(result - expected.numpy()).max() / max(float(expected.std(correction=0)), 0.1)
    assert error < TOLERANCE
    return compiled


def kernels_of(module: nn.Module, example: torch.Tensor, target: object = None) -> list[str]:
    """List the kernels that the pass makes of a module."""
    imported = tvm_ext.import_model(module.eval(), example_inputs=(example,))
    with resolve_target(target):
        mod = blocked_layout(winograd=False)(fold_constants()(imported.mod))
        mod = tvm.relax.transform.DeadCodeElimination()(mod)
    return [var.name_hint for var, func in mod.functions.items() if isinstance(func, tvm.tirx.PrimFunc)]


def sequence(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(len(layers))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_convolution_chain(target: object) -> None:
    module = sequence(
        nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.ReLU6(),
        nn.Conv2d(24, 40, 1), nn.MaxPool2d(2), nn.Conv2d(40, 7, 3, stride=2),
    )  # fmt: skip
    check(module, torch.randn(2, 3, 17, 13), target=target)


@settings(max_examples=8, deadline=None)
@given(
    channels=st.tuples(st.sampled_from([1, 3, 7, 8, 16, 17, 31, 33]), st.sampled_from([1, 3, 8, 9, 15, 16, 33, 48])),
    size=st.tuples(st.sampled_from([1, 3, 7, 8, 9, 15, 17]), st.sampled_from([1, 3, 7, 8, 9, 15, 17, 31, 33])),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 2),
)
def test_convolution_of_awkward_sizes(
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: int,
) -> None:
    out = [e + 2 * p - dilation * (k - 1) for e, p, k in zip(size, padding, kernel, strict=True)]
    if min(out) < 1:
        return
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(*channels, kernel, stride, padding, dilation), nn.ReLU())
    check(module, torch.randn(1, channels[0], *size))


@pytest.mark.parametrize("groups", [2, 4, 16])
def test_grouped_convolution(groups: int) -> None:
    module = sequence(nn.Conv2d(64, 64, 3, padding=1, groups=groups), nn.ReLU(), nn.Conv2d(64, 5, 1))
    check(module, torch.randn(2, 64, 9, 11))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("channels", "results", "groups"), [(32, 32, 8), (21, 24, 3), (48, 16, 2), (34, 68, 17)])
def test_groups_read_the_blocks_in_which_their_input_is_stored(channels, results, groups, target) -> None:  # type: ignore[no-untyped-def]
    module = sequence(
        nn.Conv2d(16, channels, 1), nn.ReLU(),
        nn.Conv2d(channels, results, 3, padding=1, groups=groups), nn.Conv2d(results, 16, (1, 3), stride=2),
    )  # fmt: skip
    check(module, torch.randn(2, 16, 7, 17), target=target)
    names = kernels_of(module, torch.randn(2, 16, 7, 17), target)
    assert sum(name.startswith("to_blocked") for name in names) == 1


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "output_padding"),
    [
        (2, 2, 0, 0),
        (3, 2, 1, 1),
        (3, 2, 1, 0),
        (4, 2, 1, 0),
        (3, 1, 1, 0),
        (5, 3, 2, 1),
        (2, 3, 0, 0),
        ((4, 3), (2, 1), (1, 0), 0),
    ],
)
def test_transposed_convolution(kernel, stride, padding, output_padding) -> None:  # type: ignore[no-untyped-def]
    transposed = nn.ConvTranspose2d(16, 24, kernel, stride, padding, output_padding)
    check(sequence(nn.Conv2d(3, 16, 3, padding=1), transposed, nn.ReLU()), torch.randn(1, 3, 7, 9))


def test_one_and_three_dimensions() -> None:
    check(sequence(nn.Conv1d(5, 19, 3, padding=1), nn.ReLU(), nn.Conv1d(19, 32, 5, stride=2)), torch.randn(2, 5, 33))
    check(
        sequence(nn.Conv3d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(16, 20, (2, 3, 1))),
        torch.randn(1, 3, 6, 9, 11),
    )


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d((2, 3), (1, 2), ceil_mode=True),
        nn.AdaptiveAvgPool2d(1),
    ],
    ids=str,
)
def test_pooling(pool: nn.Module) -> None:
    check(sequence(nn.Conv2d(3, 20, 3, padding=1), pool), torch.randn(1, 3, 13, 18))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool3d(3, 2, 1),
        nn.MaxPool3d((2, 3, 1), (1, 2, 1), ceil_mode=True),
        nn.AvgPool3d(3, (2, 1, 2), 1, count_include_pad=False),
        nn.AvgPool3d(2, 1, (1, 0, 1)),
        nn.AvgPool3d((1, 3, 4), (1, 2, 3), (0, 1, 1), ceil_mode=True, count_include_pad=False),
    ],
    ids=str,
)
def test_overlapping_windows_of_narrow_volumes_work_on_blocks_of_channels(pool: nn.Module, target: object) -> None:
    example = torch.randn(2, 37, 7, 9, 4)
    check(pool, example, target=target)
    assert "to_blocked" in kernels_of(pool, example, target)


def test_volumes_whose_copies_do_not_pay_stay_as_they_are() -> None:
    for pool, channels in ((nn.AvgPool3d(2), 37), (nn.AvgPool3d(3, 2), 3), (nn.AvgPool3d((7, 9, 11)), 37)):
        assert "to_blocked" not in kernels_of(pool, torch.randn(2, channels, 7, 9, 11), TARGETS["avx2"])


class SqueezeAndExcite(nn.Module):
    """Broadcast of a pooled tensor over space, concatenation, residual sum, flatten."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.up = nn.Conv2d(channels, 5, 1), nn.Conv2d(5, channels, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = nn.functional.silu(self.stem(image))
        gate = torch.sigmoid(self.up(torch.relu(self.down(features.mean((2, 3), keepdim=True)))))
        return torch.cat([features * gate + features, features], 1).flatten(1)


@pytest.mark.parametrize("channels", [16, 20, 24])
def test_branches(channels: int) -> None:
    torch.manual_seed(0)
    check(SqueezeAndExcite(channels), torch.randn(1, 3, 9, 10))


@pytest.mark.parametrize(("first", "second", "height", "width"), [(43, 21, 4, 11), (20, 20, 9, 10), (17, 47, 3, 5)])
def test_pixels_of_joined_channels(first: int, second: int, height: int, width: int) -> None:
    """Heads of a detector: channels of two convolutions, then all pixels along one axis."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, first, 3, padding=1), nn.Conv2d(3, second, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.relu(self.a(image)), self.b(image)], 1).flatten(2)

    torch.manual_seed(0)
    check(Net(), torch.randn(1, 3, height, width))


class Choices(nn.Module):
    """Comparisons, choices and slopes between convolutions."""

    def __init__(self, channels: int, slopes: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 7, 3)
        self.slope = nn.PReLU(slopes)
        self.slope.weight.data.uniform_(-1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.slope(self.a(image))
        return self.b(torch.where(value > value.mean((2, 3), keepdim=True), value, value * 2 - 1))


@pytest.mark.parametrize(("channels", "slopes"), [(16, 16), (20, 20), (33, 1), (5, 5)])
def test_choices_and_slopes(channels: int, slopes: int) -> None:
    torch.manual_seed(0)
    check(Choices(channels, slopes), torch.randn(1, 3, 7, 9))


def test_shuffle_split_and_odd_concat() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 32, 1), nn.Conv2d(16, 7, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            left, right = self.a(image).chunk(2, 1)
            return torch.cat([self.b(left), right, left], 1)

    check(Net(), torch.randn(1, 3, 5, 6))


def test_division_by_padded_channels_stays_finite() -> None:
    """Unused lanes hold zeros; 0 / 0 there must not reach the next convolution."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1), nn.Conv2d(5, 4, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.c(self.a(image) / (torch.sigmoid(self.b(image)) + 1))

    check(Net(), torch.randn(1, 3, 5, 6))


def test_weights_are_packed_at_compile_time() -> None:
    module = sequence(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1))
    names = kernels_of(module, torch.randn(1, 16, 8, 8))
    assert sum(name.startswith("to_blocked") for name in names) == 1
    assert sum(name.startswith("from_blocked") for name in names) == 1
    assert sum(name.startswith("conv") for name in names) == 2


@pytest.mark.parametrize(
    ("channels", "bits", "units", "block"),
    [
        (64, 512, 1, 16), (24, 512, 1, 8), (40, 512, 1, 16), (8, 512, 1, 8), (3, 512, 1, 4), (1, 512, 1, 4),
        (20, 256, 1, 8), (12, 256, 1, 4), (64, 128, 2, 4),
        # A core of two whole vectors a cycle computes no more than two halves.
        (24, 512, 2, 16), (40, 512, 2, 16), (8, 512, 2, 8), (17, 512, 2, 16), (3, 512, 2, 4), (12, 256, 2, 8),
        (5, 256, 2, 8), (4, 256, 2, 4), (6, 128, 4, 4),
    ],
)  # fmt: skip
def test_channel_block(channels: int, bits: int, units: int, block: int) -> None:
    machine = Machine("", bits, 32, clock=3e9, flops=2 * bits / 32 * units * 3e9)
    assert channel_block(channels, machine) == block


class OuterProduct(nn.Module):
    """An image, plus numbers of its pixels times numbers of its channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.a, self.s, self.b = nn.Conv2d(3, channels, 3), nn.Conv2d(3, 1, 3), nn.Conv2d(channels, 5, 1)
        self.weight = nn.Parameter(torch.rand(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x) - torch.sigmoid(self.s(x)) * self.weight)


@pytest.mark.parametrize("channels", [7, 32, 33])
def test_products_of_pixels_and_channels_are_computed_in_blocks(channels: int) -> None:
    image = torch.randn(2, 3, 9, 12)
    check(OuterProduct(channels), image)
    assert not any(name.startswith("to_blocked") for name in kernels_of(OuterProduct(channels), image))


@pytest.mark.parametrize("what", ["products", "gates", "activations"])
def test_what_another_dataflow_block_makes(what: str) -> None:
    """Its inner variables, blocked ones among them, are not seen here."""
    generator = np.random.default_rng(0)

    def weight(*shape: int) -> tvm.relax.Expr:
        return tvm.relax.const(generator.standard_normal(shape).astype("float32") / 10)

    builder, op = tvm.relax.BlockBuilder(), tvm.relax.op
    x = tvm.relax.Var("x", tvm.relax.TensorType((1, 16, 9, 9), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            image = builder.emit(op.nn.conv2d(x, weight(32, 16, 3, 3)))
            plane = builder.emit(op.sigmoid(builder.emit(op.nn.conv2d(x, weight(1, 16, 3, 3)))))
            gate = builder.emit(op.sigmoid(builder.emit(op.mean(image, [2, 3], keepdims=True))))
            made = {"products": (plane, weight(1, 32, 1, 1)), "gates": (image, gate), "activations": (image, image)}
            first = builder.emit_output(op.multiply(*made[what]))
            second = builder.emit_output(op.nn.relu(image))
        builder.emit(op.assert_op(tvm.relax.const(True)))
        with builder.dataflow():
            joined = builder.emit(op.subtract(second, first)) if what != "gates" else first
            result = builder.emit_output(op.nn.conv2d(joined, weight(8, 32, 1, 1)))
        builder.emit_func_output(result)
    mod, target = builder.get(), resolve_target(None)
    data = tvm.runtime.tensor(generator.standard_normal((1, 16, 9, 9)).astype("float32"))
    found, wanted = (
        tvm.relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline), tvm.cpu())["main"](data).numpy()
        for pipeline in ("tvm_ext", "default")
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
