"""Open extents of exported programs are called by inputs and axes, not by the numbers of torch's symbols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_ext  # noqa: E402
from tvm_ext.errors import InputError  # noqa: E402
from tvm_ext.inputs import random_inputs  # noqa: E402

AUTO = torch.export.Dim.AUTO


class Sum(torch.nn.Module):
    def forward(self, x: Any, other: Any) -> Any:
        return x.reshape(-1, 2, x.shape[1]).sum(1), x + other


def test_messages_name_inputs_and_axes() -> None:
    given = (torch.randn(4, 5), torch.randn(4, 5))
    program = torch.export.export(Sum(), given, dynamic_shapes=({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))
    model = tvm_ext.compile(program)
    assert [spec.shape for spec in model.inputs] == [("x_0", "x_1"), ("x_0", "x_1")]
    assert model.outputs[1].shape == ("x_0", "x_1")
    x, other = (np.ones((3, 5), "float32"),) * 2
    with pytest.raises(InputError, match=r"input x, other: x_0 = 3 and x_1 = 5 where the model needs x_1 \* x_0 % "):
        model.run([x, other])
    with pytest.raises(InputError, match=r"dimension 1 must be 5, found float32\[4,6\], the size of x_1 in what"):
        model.run([np.ones((4, 5), "float32"), np.ones((4, 6), "float32")])
    given = random_inputs(model.inputs, conditions=model.conditions)
    assert given["x"].shape[0] % 2 == 0
    model.run(given)


class Rows(torch.nn.Module):
    """Takes apart what it finds when it is exported."""

    def forward(self, x: Any) -> Any:
        return torch.stack([row.cumsum(0) for row in x.unbind(1)])


def test_what_torch_fixes_is_fixed() -> None:
    program = torch.export.export(Rows(), (torch.randn(4, 3, 5),), dynamic_shapes=({0: AUTO, 1: AUTO, 2: AUTO},))
    model = tvm_ext.compile(program)
    assert model.inputs[0].shape == ("x_0", 3, "x_2")
    with pytest.raises(InputError, match=r"dimension 1 must be 3, found float32\[2,4,5\]"):
        model.run([np.ones((2, 4, 5), "float32")])
    x = np.ones((7, 3, 2), "float32")
    (found,) = model.run([x]).values()
    np.testing.assert_allclose(found, x.cumsum(0).transpose(1, 0, 2))


def test_computed_extents_and_ranges_keep_their_meaning() -> None:
    few = torch.export.Dim("few", min=2, max=8)
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(3, 12),), dynamic_shapes=({1: 4 * few},))
    model = tvm_ext.compile(program)
    assert "x_1" not in model.inputs[0].shape
    (name,) = (dim for dim in model.inputs[0].shape if isinstance(dim, str))
    assert "input_1_part" in name
    (found,) = model.run(random_inputs(model.inputs)).values()
    assert found.shape[1] % 4 == 0
    with pytest.raises(InputError, match="dimension 1 must be a multiple of 4, 0 to 32, found 13"):
        model.run([np.ones((3, 13), "float32")])
