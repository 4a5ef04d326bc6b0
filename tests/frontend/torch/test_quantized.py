"""Quantised weights of PT2E and torchao against PyTorch, and what stays integer in the artifact."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import nn

import tvm_ext
from tvm_ext.errors import InputError

OPS = torch.ops.quantized_decomposed
ONE_ROW = 3e-4
"""Of the standard deviation: data of one row is rounded to 16 bits where weights have few."""


def program(model: nn.Module, x: torch.Tensor, most: int | None = 64) -> torch.export.ExportedProgram:
    """Export a model, with a batch that is open unless ``most`` is None."""
    shapes = None if most is None else ({0: torch.export.Dim("n", max=most)},)
    with torch.no_grad():
        return torch.export.export(model.eval(), (x,), dynamic_shapes=shapes)


def error(compiled: Any, exported: torch.export.ExportedProgram, x: torch.Tensor) -> float:
    """Largest deviation from PyTorch running the same program, over the standard deviation."""
    with torch.no_grad():
        wanted = exported.module()(x).double().numpy()
    (found,) = compiled.run({compiled.inputs[0].name: x.numpy()}).values()
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / wanted.std()) if wanted.size else 0.0


def forms(compiled: Any) -> set[str]:
    """Forms that operators are computed in."""
    return {decision["form"] for decision in compiled.metadata["decisions"]["layout"]}


def levels(columns: int, reduction: int, bits: int, seed: int = 0) -> torch.Tensor:
    """Draw signed integers of some bits."""
    half = 1 << (bits - 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-half, half, (columns, reduction), generator=generator).to(torch.int8)


class Grouped(nn.Module):
    """A linear layer with a weight of integers whose groups have scales, as ``quantize_`` is exported."""

    def __init__(self, reduction: int, columns: int, bits: int, group: int, symmetric: bool) -> None:
        super().__init__()
        groups = reduction // group
        self.group = group
        self.register_buffer("weight", levels(columns, reduction, bits))
        self.register_buffer("scale", torch.rand(columns, groups) * 0.1 + 0.01)
        zero = torch.zeros(columns, groups) if symmetric else torch.randint(-3, 4, (columns, groups))
        self.register_buffer("zero", zero.to(torch.int8))
        self.register_buffer("bias", torch.randn(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        columns = len(self.weight)
        cut = self.weight.view(columns, -1, self.group)
        wide = (cut.float() - self.zero.view(columns, -1, 1).float()) * self.scale.view(columns, -1, 1)
        return nn.functional.linear(x, wide.view(columns, -1), self.bias)


class TestWeightsOfFewBits:
    @pytest.mark.parametrize(
        ("reduction", "columns", "bits", "group", "symmetric"),
        [(127, 33, 4, 127, True), (256, 31, 4, 32, False), (256, 130, 8, 128, True), (384, 47, 8, 32, False)],
    )
    def test_any_number_of_rows(self, reduction: int, columns: int, bits: int, group: int, symmetric: bool) -> None:
        model = Grouped(reduction, columns, bits, group, symmetric)
        exported = program(model, torch.randn(3, reduction))
        compiled = tvm_ext.compile(exported)
        assert "few-bit weights" in forms(compiled)
        for rows in (1, 2, 3, 7, 17, 31, 33, 64):
            bound = ONE_ROW if rows == 1 else 1e-5
            assert error(compiled, exported, torch.randn(rows, reduction)) < bound

    def test_fixed_rows_and_further_axes(self) -> None:
        model = Grouped(128, 65, 4, 32, True)
        for shape in ((1, 128), (2, 5, 128), (1, 1, 128), (17, 128)):
            exported = program(model, torch.randn(shape), None)
            assert error(tvm_ext.compile(exported), exported, torch.randn(shape)) < ONE_ROW

    def test_open_sequences_of_open_batches(self) -> None:
        model = Grouped(64, 96, 4, 32, False).eval()
        shapes = ({0: torch.export.Dim("n", max=8), 1: torch.export.Dim("t", max=40)},)
        exported = torch.export.export(model, (torch.randn(3, 5, 64),), dynamic_shapes=shapes)
        compiled = tvm_ext.compile(exported)
        assert "few-bit weights" in forms(compiled)
        for batch, length in ((1, 1), (1, 40), (8, 3), (2, 17)):
            assert error(compiled, exported, torch.randn(batch, length, 64)) < ONE_ROW

    def test_numbers_that_are_none_stay_none(self) -> None:
        model = Grouped(128, 64, 8, 32, True)
        compiled = tvm_ext.compile(program(model, torch.randn(3, 128)))
        x = torch.randn(3, 128)
        x[1, 5] = torch.nan
        (found,) = compiled.run({"x": x.numpy()}).values()
        np.testing.assert_array_equal(np.isnan(found).all(1), [False, True, False])
        assert not np.isnan(found[[0, 2]]).any()

    def test_bytes_of_the_artifact(self, tmp_path: Path) -> None:
        model = Grouped(512, 2048, 4, 32, True)
        exported = program(model, torch.randn(3, 512))
        tvm_ext.compile(exported).save(tmp_path / "few")
        size = os.path.getsize(tmp_path / "few" / "model.so")
        assert size < 512 * 2048 * (0.5 + 4 / 32) + 200_000

    def test_scales_behind_the_product(self) -> None:
        class Behind(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("weight", levels(67, 96, 8))
                self.register_buffer("scale", torch.rand(67))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x @ self.weight.t().float()) * self.scale

        exported = program(Behind(), torch.randn(3, 96))
        compiled = tvm_ext.compile(exported)
        assert "few-bit weights" in forms(compiled)
        assert error(compiled, exported, torch.randn(33, 96)) < 1e-5

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_halves(self, dtype: torch.dtype) -> None:
        class Half(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("weight", levels(64, 128, 4))
                self.register_buffer("scale", (torch.rand(64, 1) + 0.5).to(dtype))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return nn.functional.linear(x.to(dtype), self.weight.to(dtype) * self.scale).float()

        exported = program(Half(), torch.randn(3, 128))
        compiled = tvm_ext.compile(exported)
        assert "few-bit weights" in forms(compiled)
        assert error(compiled, exported, torch.randn(7, 128)) < 2e-2

    def test_a_table_is_read_before_it_is_scaled(self, tmp_path: Path) -> None:
        class Table(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("table", levels(3001, 96, 8))
                self.register_buffer("scale", torch.rand(3001, 3))

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                wide = self.table.view(-1, 3, 32).float() * self.scale.view(-1, 3, 1)
                return nn.functional.embedding(ids, wide.view(-1, 96))

        exported = program(Table(), torch.tensor([[3, 5], [0, 3000]]))
        compiled = tvm_ext.compile(exported)
        for rows in (1, 3, 17):
            assert error(compiled, exported, torch.randint(0, 3001, (rows, 2))) < 1e-6
        compiled.save(tmp_path / "table")
        assert os.path.getsize(tmp_path / "table" / "model.so") < 3001 * 96 * 2
        with pytest.raises(InputError, match="3001"):
            compiled.run({"ids": np.full((1, 2), 3001)})

    def test_float_weights_where_the_target_has_no_words(self) -> None:
        exported = program(Grouped(64, 32, 4, 32, True), torch.randn(3, 64), None)
        mod = tvm_ext.compile(exported, {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
        assert mod.metadata["target"]


class TestOperatorsOfPt2e:
    @staticmethod
    def quantised(
        x: torch.Tensor, scale: float, point: int, bounds: tuple[int, int] = (0, 255), dtype: Any = torch.uint8
    ) -> torch.Tensor:
        """Quantise and dequantise."""
        q = OPS.quantize_per_tensor(x, scale, point, *bounds, dtype)
        return OPS.dequantize_per_tensor(q, scale, point, *bounds, dtype)

    @pytest.mark.parametrize("bounds", [(0, 255), (0, 127), (3, 200)])
    def test_whole_tensors(self, bounds: tuple[int, int]) -> None:
        class Both(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return TestOperatorsOfPt2e.quantised(x, 0.03, 100, bounds)

        exported = program(Both(), torch.randn(3, 33))
        compiled = tvm_ext.compile(exported)
        for rows in (1, 7, 64):
            x = torch.randn(rows, 33) * 3
            (found,) = compiled.run({"x": x.numpy()}).values()
            wanted = exported.module()(x).numpy()
            off = np.abs(found - wanted) > 1e-6
            assert np.abs(found - wanted).max() < 0.0301  # one step, where a quotient is halfway
            assert off.mean() < 0.01

    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("batch", [None, 9])
    def test_convolutions_of_integers(self, symmetric: bool, batch: int | None) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                generator = torch.Generator().manual_seed(0)
                draw = lambda *shape: torch.randint(-128, 128, shape, generator=generator).to(torch.int8)  # noqa: E731
                self.register_buffer("w", draw(17, 3, 3, 3))
                self.register_buffer("v", draw(31, 17, 1, 1))
                self.register_buffer("ws", torch.rand(17) * 0.01 + 0.001)
                self.register_buffer("vs", torch.rand(31) * 0.01 + 0.001)
                self.register_buffer("zeros", torch.zeros(17, dtype=torch.int64))
                self.register_buffer("bias", torch.randn(17) * 0.1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                point, dtype, bounds = (0, torch.int8, (-128, 127)) if symmetric else (113, torch.uint8, (0, 255))
                x = TestOperatorsOfPt2e.quantised(x, 0.02, point, bounds, dtype)
                w = OPS.dequantize_per_channel(self.w, self.ws, self.zeros, 0, -128, 127, torch.int8)
                v = OPS.dequantize_per_channel(self.v, self.vs, None, 0, -128, 127, torch.int8)
                y = nn.functional.conv2d(x, w, self.bias, padding=1).relu()
                y = TestOperatorsOfPt2e.quantised(y, 0.05, 0)
                return nn.functional.conv2d(y, v, stride=2)

        exported = program(Net(), torch.randn(3 if batch else 2, 3, 9, 7), batch)
        compiled = tvm_ext.compile(exported)
        assert any("int8" in form for form in forms(compiled))
        for images in (1, 2, 7) if batch else (2,):
            x = torch.randn(images, 3, 9, 7)
            with torch.no_grad():
                wanted = exported.module()(x).numpy()
            (found,) = compiled.run({"x": x.numpy()}).values()
            # A step of an activation that is halfway between two moves what reads it by that times a weight.
            deviation = np.abs(found - wanted) / wanted.std()
            assert np.median(deviation) < 1e-5
            assert deviation.max() < 0.05

    @pytest.mark.parametrize("kind", ["tensor", "symmetric"])
    def test_numbers_that_a_run_tells(self, kind: str) -> None:
        choose = OPS.choose_qparams.tensor if kind == "tensor" else OPS.choose_qparams_symmetric.tensor

        class Dynamic(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("w", levels(65, 96, 8))
                self.register_buffer("ws", torch.rand(65) * 0.1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                scale, point = choose(x, -128, 127, 1e-5, torch.int8)
                q = OPS.quantize_per_tensor.tensor(x, scale, point, -128, 127, torch.int8)
                x = OPS.dequantize_per_tensor.tensor(q, scale, point, -128, 127, torch.int8)
                w = OPS.dequantize_per_channel(self.w, self.ws, None, 0, -128, 127, torch.int8)
                return nn.functional.linear(x, w)

        exported = program(Dynamic(), torch.randn(3, 96))
        compiled = tvm_ext.compile(exported)
        assert "few-bit weights" in forms(compiled)
        for rows in (1, 3, 17, 64):
            assert error(compiled, exported, torch.randn(rows, 96) + 0.3) < 0.03

    def test_tokens_and_groups(self) -> None:
        class Tokens(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("w", levels(64, 128, 4))
                self.register_buffer("ws", torch.rand(64, 4) * 0.1)
                self.register_buffer("wz", torch.randint(-2, 3, (64, 4)))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                scale, point = OPS.choose_qparams_per_token_asymmetric(x, torch.int8)
                q = OPS.quantize_per_token(x, scale, point, -128, 127, torch.int8)
                x = OPS.dequantize_per_token(q, scale, point, -128, 127, torch.int8, torch.float32)
                w = OPS.dequantize_per_channel_group(self.w, self.ws, self.wz, -8, 7, torch.int8, 32, torch.float32)
                return nn.functional.linear(x, w)

        exported = program(Tokens(), torch.randn(3, 128))
        compiled = tvm_ext.compile(exported)
        for rows in (1, 7, 33):
            assert error(compiled, exported, torch.randn(rows, 128)) < 0.05

    def test_products_of_packed_weights(self) -> None:
        weight, scales = levels(48, 64, 8), torch.rand(48)

        class Packed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("weight", weight)
                self.register_buffer("scales", scales)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)

        exported = program(Packed(), torch.randn(3, 64))
        assert error(tvm_ext.compile(exported), exported, torch.randn(17, 64)) < 1e-5

    def test_products_of_packed_half_bytes(self) -> None:
        integers = torch.randint(0, 16, (64, 128), dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
        steps = torch.rand(4, 64, 2) * 0.1

        class Packed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("weight", packed)
                self.register_buffer("steps", steps)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, 32, self.steps)

        exported = program(Packed(), torch.randn(3, 128))
        compiled = tvm_ext.compile(exported)
        assert "few-bit weights" in forms(compiled)
        assert error(compiled, exported, torch.randn(7, 128)) < 1e-4

    def test_products_of_integers(self) -> None:
        class Integers(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("w", levels(64, 160, 8))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                q = torch.round(x * 20).clamp(-128, 127).to(torch.int8)
                return torch._int_mm(q, self.w.t()) * 0.01

        exported = program(Integers(), torch.randn(3, 160))
        compiled = tvm_ext.compile(exported)
        for rows in (1, 3, 17, 64):
            assert error(compiled, exported, torch.randn(rows, 160)) < 1e-6


@pytest.mark.slow
class TestTorchao:
    """Where torchao is installed, as `make test-slow` does."""

    @staticmethod
    def configurations() -> list[tuple[str, Callable[[Any], Any], float]]:
        """Name, configuration of the package, and a bound: data halfway between integers may go either way."""

        def group(quantization: Any, size: int) -> Any:
            return quantization.granularity.PerGroup(size)

        return [
            ("int8", lambda q: q.Int8WeightOnlyConfig(), ONE_ROW),
            ("int8-32", lambda q: q.Int8WeightOnlyConfig(granularity=group(q, 32)), ONE_ROW),
            ("int8 dynamic", lambda q: q.Int8DynamicActivationInt8WeightConfig(), 0.08),
            (
                "int4-32",
                lambda q: q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group(q, 32)),
                ONE_ROW,
            ),
            (
                "int3-64 asymmetric",
                lambda q: q.IntxWeightOnlyConfig(
                    weight_dtype=torch.int3, granularity=group(q, 64), mapping_type=q.MappingType.ASYMMETRIC
                ),
                ONE_ROW,
            ),
            (
                "int4-32 dynamic",
                lambda q: q.Int8DynamicActivationIntxWeightConfig(
                    weight_dtype=torch.int4, weight_granularity=group(q, 32)
                ),
                0.08,
            ),
        ]

    @pytest.mark.parametrize("number", range(6))
    def test_quantize(self, number: int) -> None:
        quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
        _, configuration, bound = self.configurations()[number]
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 130), nn.ReLU(), nn.Linear(130, 128), nn.Linear(128, 67)).eval()
        layers = lambda module, _: isinstance(module, nn.Linear) and module.in_features % 64 == 0  # noqa: E731
        quantization.quantize_(model, configuration(quantization), layers)
        exported = program(model, torch.randn(3, 256))
        compiled = tvm_ext.compile(exported)
        for rows in (1, 3, 17):
            assert error(compiled, exported, torch.randn(rows, 256)) < bound

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_pt2e(self, dynamic: bool) -> None:
        pytest.importorskip("torchao.quantization.pt2e", reason="torchao is not installed")
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        torch.manual_seed(0)
        x = torch.randn(3, 3, 16, 16)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 33)
        )
        shapes = ({0: torch.export.Dim("n", max=64)},)
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
        prepared = prepare_pt2e(torch.export.export(model.eval(), (x,), dynamic_shapes=shapes).module(), quantizer)
        prepared(x)
        exported = torch.export.export(convert_pt2e(prepared), (x,), dynamic_shapes=shapes)
        compiled = tvm_ext.compile(exported)
        assert dynamic or any("int8" in form for form in forms(compiled))
        for images in (1, 3, 7):
            assert error(compiled, exported, torch.randn(images, 3, 16, 16)) < 0.08
