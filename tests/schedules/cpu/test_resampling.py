"""The rule for resized images, against PyTorch and the rule for data-parallel kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, tirx

from tests.schedules.kernels import AARCH64, TARGETS, Compiled, compile_graph, graph, lower
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.resampling import Resampling

op = relax.op
RULES = (Resampling(), Elementwise())


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def resized(size: tuple[int, ...], method: str = "linear", layout: str = "NCHW", **options: Any) -> Callable[..., Any]:
    mode = options.pop("mode", "half_pixel")
    return lambda _, x: op.image.resize2d(
        x, size, layout=layout, method=method, coordinate_transformation_mode=mode, **options
    )


def rules(compiled: Compiled) -> set[str]:
    return set(compiled.rules.values())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 64, 9, 9), (18, 18)),
        ((2, 3, 9, 11), (13, 17)),
        ((1, 5, 8, 32), (32, 128)),
        ((1, 4, 1, 1), (7, 5)),
        ((1, 4, 5, 1), (9, 3)),
        ((1, 2, 7, 33), (10, 20)),
        ((1, 1, 37, 20), (74, 75)),
        ((1, 1, 3, 3), (1, 1)),
    ],
)
def test_as_pytorch_computes_it(shape: tuple[int, ...], size: tuple[int, int], target: str) -> None:
    x = values(*shape)
    for mode, corners in (("half_pixel", False), ("align_corners", True)):
        if mode == "align_corners" and 1 in size:
            continue
        compiled = compile_graph(resized(size, mode=mode), [x], RULES, TARGETS[target])
        expected = torch.nn.functional.interpolate(
            torch.from_numpy(x), size=size, mode="bilinear", align_corners=corners
        ).numpy()
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5)
        assert rules(compiled) == {"cpu.resampling" if size[0] > shape[2] and 1 not in shape[2:] else "cpu.elementwise"}


@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_as_the_other_rule_computes_it(mode: str, method: str) -> None:
    x = values(1, 3, 10, 13)
    x[0, :, 4, 6], x[0, 0, 0, 0], x[0, 1, 9, 12] = np.nan, np.inf, -np.inf
    for size in ((20, 26), (15, 21), (11, 9), (5, 9), (4, 13)):
        build = resized(size, method, mode=mode)
        found, expected = (compile_graph(build, [x], known, TARGETS["avx2"]) for known in (RULES, RULES[1:]))
        assert (rules(found), rules(expected)) == ({"cpu.resampling"}, {"cpu.elementwise"})
        np.testing.assert_allclose(found(x), expected(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [40, 48, 50])
def test_rows_that_the_cache_does_not_hold_are_kept_in_strips(width: int) -> None:
    x = values(1, 2, 3000, 20)
    compiled = compile_graph(resized((6000, width)), [x], RULES, TARGETS["avx2"])
    assert rules(compiled) == {"cpu.resampling"}
    assert "strip" in str(*compiled.kernels.values())
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=(6000, width), mode="bilinear").numpy()
    # Places of thousands of rows have few bits for the weights.
    np.testing.assert_allclose(compiled(x), expected, atol=2e-3)


def test_strips_of_one_image_are_shared_out() -> None:
    x = values(1, 1, 200, 200)
    compiled = compile_graph(resized((400, 400)), [x], RULES, TARGETS["avx2"])
    assert rules(compiled) == {"cpu.resampling"}
    assert "T.parallel(T.int64(3))" in str(*compiled.kernels.values())
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=(400, 400), mode="bilinear").numpy()
    np.testing.assert_allclose(compiled(x), expected, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 3, 32, 32), (16, 16)),
        ((2, 3, 31, 33), (17, 19)),
        ((1, 2, 64, 90), (20, 24)),
        ((1, 1, 40, 40), (13, 37)),
        ((1, 64, 48, 48), (8, 40)),
    ],
)
def test_smaller_images_join_rows_first(shape: tuple[int, ...], size: tuple[int, int], target: str) -> None:
    x = values(*shape)
    compiled = compile_graph(resized(size), [x], RULES, TARGETS[target])
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=size, mode="bilinear").numpy()
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5)
    assert rules(compiled) == {"cpu.resampling"}


@pytest.mark.parametrize("size", [(18, 21), (5, 8)])
def test_with_neighbours(size: tuple[int, int]) -> None:
    x, other, weight = values(1, 8, 9, 9), values(1, 8, *size), values(1, 8, 1, 1)

    def build(_: Any, a: Any, b: Any, c: Any) -> Any:
        larger = op.image.resize2d(
            op.nn.relu(op.multiply(a, c)), size, layout="NCHW", method="linear",
            coordinate_transformation_mode="half_pixel",
        )  # fmt: skip
        return op.tanh(op.add(larger, b))

    compiled = compile_graph(build, [x, other, weight], RULES, TARGETS["avx2"])
    assert rules(compiled) == {"cpu.resampling"}
    expected = torch.nn.functional.interpolate(
        torch.relu(torch.from_numpy(x * weight)), size=size, mode="bilinear"
    ).numpy()
    np.testing.assert_allclose(compiled(x, other, weight), np.tanh(expected + other), rtol=1e-5, atol=1e-6)


def test_volumes() -> None:
    x = values(1, 3, 5, 6, 7)
    size = (10, 12, 14)
    compiled = compile_graph(
        lambda _, a: op.image.resize3d(a, size, method="linear", coordinate_transformation_mode="half_pixel"),
        [x],
        RULES,
    )
    assert rules(compiled) == {"cpu.resampling"}
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=size, mode="trilinear").numpy()
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5)


def test_what_rows_do_not_pay_for_or_are_not_known_of_is_declined() -> None:
    image = values(1, 8, 12, 12)
    for build in (
        resized((2, 2)),
        resized((6, 6)),
        resized((24, 24), "nearest_neighbor", rounding_method="floor", mode="asymmetric"),
        resized((24, 24), layout="NHWC"),
    ):
        assert rules(compile_graph(build, [image], RULES)) == {"cpu.elementwise"}
    height = tirx.Var("h", "int64")
    module = graph(resized((24, 24)), [((1, 8, height, 12), "float32")])
    compiled = lower(module, TARGETS["native"], RULES)
    assert rules(compiled) == {"cpu.elementwise"}
    expected = torch.nn.functional.interpolate(torch.from_numpy(image), size=(24, 24), mode="bilinear").numpy()
    np.testing.assert_allclose(compiled(image), expected, rtol=1e-5, atol=1e-5)


def test_rows_are_read_and_written_in_whole_vectors() -> None:
    """Addresses of 64 bits with loops of 32 bits were stored to lane by lane."""
    func = next(iter(compile_graph(resized((80, 80)), [values(1, 64, 40, 40)], RULES).kernels.values()))

    with TARGETS["avx2"]:
        lowered = vector_code()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    lines = [line.strip() for line in str(lowered["main"]).splitlines()]
    stores = [line for line in lines if line.startswith(("rows[", "resize_1["))]
    assert len(stores) == 2
    assert all("Broadcast" not in store.partition("] = ")[0] for store in stores)


def test_aarch64_compiles() -> None:
    compiled = compile_graph(resized((20, 30)), [values(1, 3, 10, 13)], RULES, AARCH64)
    assert rules(compiled) == {"cpu.resampling"}
