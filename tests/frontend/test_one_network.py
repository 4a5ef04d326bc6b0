"""A network imported from an ONNX file, from an exported program and by ``torch.compile``: as many kernels each way."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import io
import re
import warnings
from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor

import tvm_ext
from tests.frontend.networks import NETWORKS
from tests.torch_compile.eager import TARGET, compiled
from tvm_ext.artifact.compiled_model import CompiledModel

pytestmark = pytest.mark.torch


def kernels(*models: CompiledModel) -> list[str]:
    """List the kernels that models call; a reshape of what is returned is one that others do not have."""
    called = [re.findall(r"call +(\S+) +in:", model.executable.as_text()) for model in models]
    return [name for names in called for name in names if not re.fullmatch(r"vm\..*|reshape\d*", name)]


def by_onnx(network: torch.nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor | list[str]]:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, inputs, file, dynamo=False, opset_version=17)
    model = tvm_ext.compile(onnx.load_from_string(file.getvalue()), TARGET)
    return [kernels(model), torch.from_numpy(*model.run([x.numpy() for x in inputs]).values())]


def by_export(network: torch.nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor | list[str]]:
    model = tvm_ext.compile(torch.export.export(network, inputs), TARGET)
    return [kernels(model), torch.from_numpy(*model.run([x.numpy() for x in inputs]).values())]


def by_compile(network: torch.nn.Module, inputs: tuple[Tensor, ...], patch: Any) -> list[Tensor | list[str]]:
    models: list[CompiledModel] = []
    run_tensors = CompiledModel.run_tensors

    def noted(self: CompiledModel, *arguments: Any, **keywords: Any) -> Any:
        models.append(self)
        return run_tensors(self, *arguments, **keywords)

    patch.setattr(CompiledModel, "run_tensors", noted)
    found = compiled(network)(*inputs)
    return [kernels(*models), found]


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shapes = NETWORKS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    network, inputs = make().eval(), tuple(map(torch.randn, shapes))
    with torch.no_grad():
        wanted = network(*inputs)
        ways = {
            "onnx": by_onnx(network, inputs),
            "export": by_export(network, inputs),
            "compile": by_compile(network, inputs, monkeypatch),
        }
    for way, (_, found) in ways.items():
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4, msg=way)
    counts = {way: len(called) for way, (called, _) in ways.items()}
    assert len(set(counts.values())) == 1, ways
