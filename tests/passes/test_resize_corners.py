"""Resizing to one row or column with aligned corners gives the first one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_ext
from tests.schedules.kernels import graph

X = np.random.default_rng(0).standard_normal((1, 3, 5, 7)).astype("float32")


def resized(size: tuple[int, int], method: str, layout: str = "NCHW") -> np.ndarray:
    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        return builder.emit(
            relax.op.image.resize2d(
                x, size, method=method, layout=layout, coordinate_transformation_mode="align_corners",
                rounding_method="round", cubic_alpha=-0.75,
            )
        )  # fmt: skip

    array = X if layout == "NCHW" else np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    (found,) = tvm_ext.compile(graph(build, [(array.shape, "float32")])).run([array]).values()
    return found if layout == "NCHW" else found.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("method", ["linear", "cubic", "nearest_neighbor"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_one_row_or_column_is_the_first(method: str, layout: str) -> None:
    larger = resized((3, 4), method, layout)  # its first row and column are the picture's
    np.testing.assert_allclose(resized((1, 4), method, layout), larger[:, :, :1], rtol=1e-6)
    np.testing.assert_allclose(resized((3, 1), method, layout), larger[:, :, :, :1], rtol=1e-6)
    np.testing.assert_array_equal(resized((1, 1), method, layout), X[:, :, :1, :1])


def test_as_torch_has_it() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    class Up(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return functional.interpolate(x, size=(1, 4), mode="bilinear", align_corners=True)

    x = torch.from_numpy(X)
    compiled = tvm_ext.compile(torch.export.export(Up().eval(), (x,)))
    (found,) = compiled.run([x]).values()
    np.testing.assert_allclose(found, Up()(x).numpy(), rtol=1e-6)
