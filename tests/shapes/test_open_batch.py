"""Models with an open batch compute image by image where that is proved, and the same as stock TVM in any case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

import tvm_ext
from tests.shapes.batch_models import (
    MIXING,
    NUMBERS,
    TAKEN,
    assert_right,
    lowered,
    models,
)
from tvm_ext.inputs import aligned
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.shapes import open_batch as open_batch_module
from tvm_ext.shapes.open_batch import OVER_BATCH, open_batch


@pytest.fixture(autouse=True, scope="module")
def rows_are_looped() -> Iterator[None]:
    """Have loops made of reductions of rows as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_batch_module, "are_reductions_of_rows", lambda *_: False)
        yield


@cache
def compiled(name: str) -> Any:
    return tvm_ext.compile(models()[name])


class TestValues:
    @pytest.mark.parametrize("name", TAKEN)
    def test_image_by_image(self, name: str) -> None:
        assert_right(compiled(name).executable, name)

    @pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=[] if name in ("sum", "number", "rows") else pytest.mark.slow) for name in MIXING],
    )
    def test_images_that_see_each_other(self, name: str) -> None:
        numbers = NUMBERS if name not in ("softmax", "first") else NUMBERS[1:]
        assert_right(tvm_ext.compile(models()[name]).executable, name, numbers)

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{"memory": "arena"}, {"memory": "optimal"}, {"fuse": "mapping-type"}])
    def test_options(self, options: dict[str, Any]) -> None:
        assert_right(tvm_ext.compile(models()["conv_net"], **options).executable, "conv_net", (0, 1, 5))

    def test_images_that_are_not_aligned(self) -> None:
        assert_right(compiled("conv_net").executable, "conv_net", (33,))

    def test_images_of_an_input_that_begins_anywhere(self) -> None:
        model = compiled("conv_net")
        images = np.random.default_rng(0).standard_normal((39, 3, 17, 13)).astype("float32")
        expected = model.run([aligned(images)])
        memory = np.zeros(images.nbytes + 128, "uint8")
        for offset in (4, 16, 36):
            shifted = np.ndarray(images.shape, "float32", memory, -memory.ctypes.data % 64 + offset)
            shifted[...] = images
            for name, found in model.run([shifted]).items():
                np.testing.assert_array_equal(found, expected[name])


class TestKernels:
    @pytest.mark.parametrize("name", TAKEN)
    def test_a_rule_takes_every_kernel_and_none_has_an_open_extent(self, name: str) -> None:
        kernels = [f for f in lowered(name, "schedule").functions.values() if isinstance(f, tirx.PrimFunc)]
        assert kernels
        for kernel in kernels:
            assert all(isinstance(extent, tirx.IntImm) for p in kernel.params for extent in p.shape)
            assert RULE_ATTRIBUTE in kernel.attrs

    def test_convolutions_are_those_of_a_static_model(self) -> None:
        # With stock planning the virtual machine calls every kernel, where they can be counted.
        static = tvm_ext.compile(relax.transform.BindSymbolicVars({"n": 1})(models()["conv_net"]), memory="stock")
        opened = tvm_ext.compile(models()["conv_net"], memory="stock")
        counts = [m.metadata["decisions"]["statistics"] for m in (static, opened)]
        bodies = len([f for f in lowered("conv_net", "canonicalize").get_global_vars() if "_of_" in f.name_hint])
        # As many kernels for each number of images, and the copies of those results that are not written in place.
        kernels = counts[0]["kernel_calls"]
        assert bodies * kernels <= counts[1]["kernel_calls"] <= bodies * (kernels + 1)

    @pytest.mark.parametrize("name", ["conv_net", "batch_second", "images_by_rows"])
    def test_chains_of_small_kernels_are_looped_over_by_one_function(self, name: str) -> None:
        mod = lowered(name, "lower")
        names = [global_var.name_hint for global_var in mod.get_global_vars()]
        assert "image_segment" in names
        assert not any("_by_" in found or "_of_" in found for found in names)
        plan = json.loads(str(mod["image_segment"].attrs[SEGMENT_ATTRIBUTE]))
        assert plan["images"] == [1, 4, 16]
        assert max(plan["ratios"], default=1.0) <= 1.05

    @pytest.mark.parametrize("name", ["conv_net", "sum"])
    def test_no_function_makes_buffers_of_kernels_overlap(self, name: str) -> None:
        mod = lowered(name, "finalize")
        kernels = {v.name_hint: f for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
        assert kernels
        assert [found for found, f in kernels.items() if "tirx.noalias" not in f.attrs] == []

    def test_only_what_sees_several_images_is_left_outside(self) -> None:
        mod = open_batch()(models()["sum"])
        operators = []
        relax.analysis.post_order_visit(
            mod["main"], lambda e: operators.append(str(e.op)) if isinstance(e, relax.Call) else None
        )
        assert not any("matmul" in operator for operator in operators)
        assert any("sum" in operator for operator in operators)
        assert mod["main"].script().count(OVER_BATCH) == 2

    def test_static_modules_are_left_alone(self) -> None:
        static = relax.transform.BindSymbolicVars({"n": 2})(models()["conv_net"])
        assert open_batch()(static).same_as(static)
