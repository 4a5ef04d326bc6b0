"""Kernels whose tiles come through registers element by element keep none of them in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import tvm
from tvm.script import relax as R

from scripts.cuda.kernels import kernels_of, target_of
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.resources import kernel_resources, spilling
from tvm_ext.backends.cuda.toolkit import find_toolkit
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.phases import Phase
from tvm_ext.pipeline import checked_options
from tvm_ext.schedules.rule import RULE_ATTRIBUTE


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("data", "weight", "strides", "dtype"),
    [
        ((1, 3, 230, 230), (64, 3, 7, 7), 2, "uint8"),
        ((1, 128, 28, 28), (256, 128, 1, 1), 2, "uint8"),
        ((1, 3, 230, 230), (64, 3, 7, 7), 2, "float16"),
        ((1, 17, 31, 33), (33, 17, 3, 3), 1, "int8"),
    ],
)
def test_convolutions_of_planes(
    data: Sequence[int], weight: Sequence[int], strides: int, dtype: str, arch: str
) -> None:
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA toolkit counts registers here")
    halves = dtype == "float16"
    mod = graph(
        lambda _, x, w: R.nn.conv2d(x, w, strides=strides, out_dtype="float32" if halves else "int32"),
        [(data, dtype), (weight, "float16" if halves else "int8")],
    )
    target = target_of(arch)
    kernels = {kernel.name: kernel.scheduled for kernel in kernels_of("convolution", mod, target)}
    assert "cuda.tensor_matmul" in [str((func.attrs or {}).get(RULE_ATTRIBUTE)) for func in kernels.values()]
    assert spilling(kernel_resources(kernels, target, toolkit)) == []


@pytest.mark.parametrize(("arch", "precision"), [("sm_90", "tf32"), ("sm_80", "float16")])
def test_open_batches(arch: str, precision: str) -> None:
    """Addresses of an open batch have 64 bits: more registers, of which fewer blocks are to have enough."""
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA toolkit counts registers here")
    data = (tvm.tirx.Var("n", "int64"), 128, 28, 28)
    mod = graph(
        lambda _, x, w: R.nn.relu(R.nn.conv2d(x, w, strides=2, padding=1)),
        [(data, "float32"), ((256, 128, 3, 3), "float32")],
    )
    target = target_of(arch)
    kernels = {kernel.name: kernel.scheduled for kernel in kernels_of("open", mod, target, precision=precision)}
    assert "cuda.tensor_matmul" in [str((func.attrs or {}).get(RULE_ATTRIBUTE)) for func in kernels.values()]
    assert spilling(kernel_resources(kernels, target, toolkit)) == []


def test_open_rows() -> None:
    """Each row that a lane stores has a condition and an address of 64 bits."""
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA toolkit counts registers here")
    data = (tvm.tirx.Var("b", "int64"), tvm.tirx.Var("n", "int64"), 512)
    mod = graph(
        lambda _, x, w, v: R.add(x, R.add(R.matmul(R.multiply(x, x), w), v)),
        [(data, "float32"), ((512, 512), "float32"), ((512,), "float32")],
    )
    target = target_of("sm_80")
    kernels = {kernel.name: kernel.scheduled for kernel in kernels_of("open", mod, target, precision="float16")}
    assert "cuda.open_product" in [str((func.attrs or {}).get(RULE_ATTRIBUTE)) for func in kernels.values()]
    assert spilling(kernel_resources(kernels, target, toolkit)) == []


class Heads(torch.nn.Module):
    """Attention of three heads, of queries, keys and values that are cut from one tensor, or come apart."""

    def __init__(self, width: int, cut: bool) -> None:
        super().__init__()
        self.width, self.cut = width, cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = x.view(batch, length, 3, 3, self.width).permute(2, 0, 3, 1, 4)
        if not self.cut:
            q, k, v = (torch.relu(part) for part in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(("width", "precision"), [(20, "float32"), (72, "float16"), (100, "float32")])
def test_attention_of_open_extents(width: int, precision: str, cut: bool) -> None:
    """Addresses of 64 bits take registers, most of all beside heads that are no whole fragments."""
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA toolkit counts registers here")
    batch, length = torch.export.Dim("b", max=64), torch.export.Dim("n", max=512)
    program = torch.export.export(
        Heads(width, cut), (torch.zeros(2, 40, 9 * width),), dynamic_shapes=({0: batch, 1: length},)
    )
    target = target_of("sm_90")
    scheduled: dict[str, tvm.tirx.PrimFunc] = {}

    def keep(phase: Phase, after: tvm.IRModule) -> None:
        if phase.name == "schedule":
            functions = after.functions_items()
            scheduled.update({name.name_hint: func for name, func in functions if isinstance(func, tvm.tirx.PrimFunc)})

    lower(import_model(program).mod, target, checked_options({"precision": precision}), after_phase=keep)
    assert "cuda.attention" in [str((func.attrs or {}).get(RULE_ATTRIBUTE)) for func in scheduled.values()]
    assert spilling(kernel_resources(scheduled, target, toolkit)) == []
