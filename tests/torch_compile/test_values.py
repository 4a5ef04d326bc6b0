"""What compiled functions give is what PyTorch gives: types, structures, numbers and layouts of all kinds."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import dataclasses
import random
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn, randn

from tests.torch_compile.eager import LENIENT, STRICT, assert_like_eager, assert_same, compiled

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def small_net(channels: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Linear(channels, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)
    ).eval()  # fmt: skip


def picture_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float16, {"rtol": 1e-2, "atol": 1e-2}),
        (torch.bfloat16, {"rtol": 3e-2, "atol": 3e-2}),
        (torch.float64, {"rtol": 1e-9, "atol": 1e-9}),
    ],
    ids=str,
)
def test_precisions(dtype: torch.dtype, tolerance: dict[str, float]) -> None:
    assert_like_eager(small_net().to(dtype), (randn(3, 16).to(dtype),), **tolerance)


def test_random_numbers_of_python() -> None:
    """Dynamo traces them as float32 and passes float64."""

    def run(x: Any) -> Any:
        draw = random.Random(3)
        return x * draw.random() + draw.randrange(10)

    assert_like_eager(run, (randn(3, 5),))


class TestAutocast:
    def test_inside(self) -> None:
        net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()

        def run(x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return net(x)

        assert_like_eager(run, (randn(3, 16),), rtol=3e-2, atol=3e-2)

    def test_outside_and_then_without(self) -> None:
        net = nn.Linear(16, 4).eval()
        run, x = compiled(net), randn(3, 16)
        with torch.no_grad():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert_same(run(x), net(x), rtol=3e-2, atol=3e-2)
            assert_same(run(x), net(x))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    def run(x: Any) -> Any:
        return x // 3, x % 3, x >> 1, x.float() / 2, x == 4, ~x

    assert_like_eager(run, (torch.arange(-5, 5).to(dtype),))


def test_truth_values() -> None:
    def run(x: Any, y: Any) -> Any:
        return x & y, x | y, x ^ y, ~x, x.sum(), x.any(), torch.where(x, 1.0, 2.0)

    assert_like_eager(run, (randn(5) > 0, randn(5) > 0), (torch.zeros(3, dtype=torch.bool), torch.ones(3) > 0))
    torch._dynamo.reset()
    assert_like_eager(lambda x: x.any(), (torch.zeros(0),), (torch.tensor([0.0, np.nan]),))


def test_numbers_as_arguments() -> None:
    def run(x: Any, n: int, a: float, flag: bool) -> Any:
        return x * n + a if flag else x - n

    calls = [(2, 1.5, True), (3, 2.5, True), (4, 3.5, False), (5, -3.5, True), (-5, float("inf"), True)]
    assert_like_eager(run, *[(randn(3), *numbers) for numbers in calls])


def test_an_integer_that_only_scales_is_an_extent_of_nothing() -> None:
    def run(x: Any, n: int) -> Any:
        return x * n, x + n, x > n, x.long() // n

    assert_like_eager(run, *[(randn(3), n) for n in (2, 3, 1000, -7, 2**40)], options=LENIENT)


def test_integers_as_extents() -> None:
    assert_like_eager(lambda x, n: (torch.arange(n) + x.sum().long(), x[:n]), *[(randn(9), n) for n in (2, 3, 5, 7)])


class TestStructures:
    def test_outputs_of_all_kinds(self) -> None:
        assert_like_eager(lambda x: (None, x + 1, (None, {"a": x * 2}), "s", 3, x.shape), (randn(3),))

    def test_dictionaries_and_keywords(self) -> None:
        net = nn.Linear(3, 3).eval()

        def run(given: dict[str, Any], *, k: Any = None) -> dict[str, Any]:
            return {"y": net(given["x"]) + (k if k is not None else 0)}

        compiled_run, x = compiled(run), randn(2, 3)
        with torch.no_grad():
            assert_same(compiled_run({"x": x}), run({"x": x}))
            assert_same(compiled_run({"x": x}, k=x), run({"x": x}, k=x))

    def test_data_classes_and_lists(self) -> None:
        @dataclasses.dataclass
        class Result:
            a: Any
            b: int = 3

        x = randn(2)
        assert torch.equal(compiled(lambda x: Result(x * 2))(x).a, x * 2)
        given = [x]

        def extend(xs: list[Any]) -> Any:
            xs.append(xs[0] * 2)
            return sum(xs)

        assert_same(compiled(extend)(given), x * 3)
        assert_same(given, [x, x * 2])

    def test_no_inputs(self) -> None:
        net, x = nn.Linear(3, 3).eval(), randn(2, 3)
        run = compiled(lambda: net(x) * torch.arange(3))
        with torch.no_grad():
            assert_same(run(), net(x) * torch.arange(3))
            x.add_(1)
            assert_same(run(), net(x) * torch.arange(3))

    def test_numpy(self) -> None:
        x = np.arange(4.0)
        np.testing.assert_allclose(compiled(lambda x: np.sin(x) + 1)(x), np.sin(x) + 1)


class TestLayouts:
    def test_not_contiguous(self) -> None:
        inputs = (randn(4, 6).t(), randn(8, 6)[::2], randn(2, 3, 4, 5).permute(0, 2, 3, 1), randn(9)[1:])
        run = compiled(lambda x: (x.sum(0), x * 2))
        with torch.no_grad():
            for x in inputs:
                assert_same(run(x), (x.sum(0), x * 2))

    def test_channels_last(self) -> None:
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
        run, x = compiled(net), randn(2, 3, 9, 9)
        with torch.no_grad():
            for given in (x.contiguous(memory_format=torch.channels_last), x):
                found, expected = run(given), net(given)
                assert_same(found, expected, **CLOSE)
                assert found.stride() == expected.stride()

    def test_nothing_in_it(self) -> None:
        assert_like_eager(
            lambda x: (x * 2, x.sum(), torch.cat([x, x])), *[(randn(*s),) for s in ((0, 3), (2, 0), (2, 3))]
        )
        torch._dynamo.reset()
        assert_like_eager(nn.Linear(3, 4).eval(), (randn(0, 3),))

    def test_memory_is_not_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tvm_ext.artifact.compiled_model import CompiledModel

        seen: list[Any] = []
        original = CompiledModel.run_tensors

        def run_tensors(self: CompiledModel, given: Any) -> Any:
            results = original(self, given)
            seen.append(([tensor.data_ptr() for tensor in given], [tensor.data_ptr() for tensor in results]))
            return results

        monkeypatch.setattr(CompiledModel, "run_tensors", run_tensors)
        x = randn(64, 64)
        y = compiled(lambda x: x * 2)(x)
        assert seen == [([x.data_ptr()], [y.data_ptr()])]


LAYERS = {
    "attention": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), lambda: (x := randn(2, 5, 16), x, x)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), lambda: (randn(2, 5, 16),)),
    "encoder_gelu_first": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", norm_first=True),
        lambda: (randn(2, 5, 16), torch.ones(5, 5).triu(1) > 0),
    ),
    "weight_norm": (lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), lambda: (randn(2, 4),)),
    "pictures": (picture_net, lambda: (randn(2, 3, 16, 16),)),
    "embedding_bag": (lambda: nn.EmbeddingBag(10, 4), lambda: (torch.tensor([[1, 2], [3, 4]]),)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    make, draw = LAYERS[name]
    assert_like_eager(make().eval(), draw(), **CLOSE)


def test_padding_hides_tokens_of_an_encoder() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x, hidden = randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    run = compiled(lambda x, hidden: encoder(x, src_key_padding_mask=hidden))
    with torch.no_grad():
        assert_same(run(x, hidden), encoder(x, src_key_padding_mask=hidden), **CLOSE)


FUNCTIONS = {
    "resized": lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(5, 7), mode="nearest"),
        F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    ),
    "padded": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 2, 1, 1), mode="reflect"), F.pad(x, (1, 0, 1, 1), "circular")),
    "ordered": lambda x: (x.sort(-1), x.argmax(), x.median(0), x.cumsum(0), x.std(0), torch.var_mean(x, 1)),
    "products": lambda x: (torch.einsum("bcij,bcjk->bik", x, x), torch.einsum("bcij->bjci", x)),
    "masked": lambda x: x.masked_fill(x > 1, float("-inf")).softmax(-1),
    "vmap": lambda x: torch.func.vmap(lambda row: row.sin() * 2)(x),
    "gradient": lambda x: torch.func.grad(lambda y: (y * y.sin()).sum())(x),
    "branches": lambda x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = randn(1, 2, 6, 6)
    assert_like_eager(FUNCTIONS[name], (x,), (-x,), **CLOSE)


def test_inference_mode() -> None:
    net = nn.Linear(4, 4).eval()
    run, x = compiled(net), randn(3, 4)
    with torch.inference_mode():
        assert_same(run(x), net(x))
        assert_same(run(y := randn(3, 4)), net(y))
    with torch.no_grad():
        assert_same(run(x), net(x))
    with torch.inference_mode():
        inner = nn.Linear(4, 4).eval()  # PyTorch does not count changes of its weights
        run = compiled(inner)
        assert_same(run(x), inner(x))
        inner.weight.mul_(2)
        assert_same(run(x), inner(x))


def test_several_threads() -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    run, errors = compiled(net), []

    def work(rows: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    x = randn(rows, 16)
                    assert_same(run(x), net(x))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_pipeline_options_reach_the_pipeline() -> None:
    for options in ({"memory": "optimal", "rewrite": "strict", "fuse": "mapping-type"}, {"opt_level": 0}):
        torch._dynamo.reset()
        assert_like_eager(small_net(), (randn(3, 16),), options={**STRICT, **options}, **CLOSE)
