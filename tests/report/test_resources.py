"""The section of the page that tells what kernels take of a GPU."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from tvm_ext.backends.backend import ResourceTable
from tvm_ext.backends.cuda import resources, toolkit
from tvm_ext.report.collect import inspect_model
from tvm_ext.report.page import render


def _model() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x, w = relax.Var("x", R.Tensor((17, 33), "float32")), relax.Var("w", R.Tensor((33, 7), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(R.nn.relu(R.matmul(x, w))))
        builder.emit_func_output(result)
    return builder.get()


def test_without_a_toolkit_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "find_toolkit", lambda: None)
    found = inspect_model(_model(), "nvidia/h100")
    assert found.resources == ResourceTable(toolkit.MISSING)
    page = render(found)
    assert "Registers and shared memory" in page
    assert "install a CUDA toolkit" in page


def test_registers_of_each_kernel() -> None:
    if toolkit.find_toolkit() is None:
        pytest.skip(toolkit.MISSING)
    found = inspect_model(_model(), "nvidia/h100")
    assert found.resources is not None
    assert len(found.resources.rows) >= len(found.kernels) > 0
    (registers,) = {row[2] for row in found.resources.rows[:1]}
    assert isinstance(registers, int)
    assert 8 <= registers <= 255
    assert f'data-sort="{float(registers)}"' in render(found)


def test_a_cpu_has_no_such_section() -> None:
    found = inspect_model(_model(), "llvm")
    assert found.resources is None
    assert "Registers and shared memory" not in render(found)
