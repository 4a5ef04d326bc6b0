"""Each engine on small models: right outputs, the threads and the precision that were asked for."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.zoo import get
from tvm_ext.bench import Contender, compare
from tvm_ext.bench.contender import choose_contenders
from tvm_ext.bench.peers import ENGINES
from tvm_ext.bench.protocol import Job
from tvm_ext.bench.result import BenchResult, Row
from tvm_ext.bench.subject import open_subject


def job(model: Path, inputs: dict[str, np.ndarray], **fields: Any) -> Job:
    base: Job = {
        "model": str(model),
        "kind": "onnx",
        "inputs": inputs,
        "dimensions": {},
        "importing": {},
        "ranges": {},
        "threads": 1,
        "target": '{"kind": "llvm"}',
        "device": "cpu",
        "options": {},
    }
    return base | fields  # type: ignore[return-value]


def load(name: str) -> Any:
    for package in ENGINES[name].packages["onnx" if name != "torch" else "pt2"]:
        pytest.importorskip(package)
    return importlib.import_module(f"tvm_ext.bench.peers.{name}_engine")


@pytest.fixture(scope="module")
def measured() -> BenchResult:
    """All engines on one model, and this package with an option and with a wrong one: every worker is started once."""
    entry = get("tiny_cnn")
    contenders = [
        *choose_contenders(None, "onnx"),
        Contender("tvm_ext", "single", options={"disable": "fuse"}),
        Contender("tvm_ext", "wrong", options={"disable": "phase7"}),
    ]
    return compare(entry.onnx_path(), contenders, inputs=entry.inputs(1), threads=1, noise=False)


def assert_agreement(rows: Sequence[Row], reference: str | None) -> None:
    for row in rows:
        assert row.error is None, f"{row.label}: {row.error}"
        assert row.runs >= 10
        if row.engine != reference:
            assert row.relative_error is not None
            assert row.relative_error < 1e-4
        if row.engine in ("tvm", "tvm_ext"):
            assert row.kernels is not None
            assert row.kernel_calls is not None
            assert row.kernels <= row.kernel_calls
            assert row.planned_bytes is not None
            assert row.compile_seconds is not None
    assert {"tvm", "tvm_ext"} <= {row.engine for row in rows}


@pytest.mark.xdist_group("engines")
def test_all_engines_agree(measured: BenchResult) -> None:
    assert_agreement([row for row in measured.rows if row.label != "wrong"], measured.reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_transformer"])
def test_all_engines_agree_on_other_models(name: str) -> None:
    entry = get(name)
    result = compare(entry.onnx_path(), inputs=entry.inputs(1), threads=1, noise=False)
    assert_agreement(result.rows, result.reference)


@pytest.mark.xdist_group("engines")
def test_options_reach_tvm_ext_and_a_wrong_one_is_the_error_of_its_row(measured: BenchResult) -> None:
    assert measured["single"].error is None
    assert (measured["single"].kernel_calls or 0) > (measured["tvm_ext"].kernel_calls or 0)
    assert "unknown phase 'phase7'" in (measured["wrong"].error or "")


def test_openvino_computes_in_float32_with_the_threads_asked_for() -> None:
    module = load("openvino")
    entry = get("tiny_mlp")
    engine = module.Engine(job(entry.onnx_path(), entry.inputs(1)))
    compiled = engine._request.get_compiled_model()
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1


def test_onnxruntime_uses_the_cpu_with_the_threads_asked_for() -> None:
    module = load("onnxruntime")
    entry = get("tiny_mlp")
    engine = module.Engine(job(entry.onnx_path(), entry.inputs(1)))
    assert engine._session.get_providers() == ["CPUExecutionProvider"]
    assert engine._session.get_session_options().intra_op_num_threads == 1


def test_tvm_takes_its_threads_from_the_environment() -> None:
    import os
    import subprocess
    import sys

    from tvm_ext.bench.process import thread_environment

    code = "import tvm; print(tvm.get_global_func('runtime.NumThreads')())"
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | thread_environment(1), capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "1"


@pytest.mark.torch
@pytest.mark.parametrize("engines", [["torch"], pytest.param(None, marks=pytest.mark.slow)])
def test_torch_programs_run_everywhere(tmp_path: Path, engines: list[str] | None) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Two(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 6)

        def forward(self, x: Any, scale: Any) -> Any:
            hidden = torch.relu(self.linear(x))
            return hidden * scale, hidden.sum(dim=1)

    program = torch.export.export(Two().eval(), (torch.randn(4, 8), torch.randn(6)))
    path = tmp_path / "two.pt2"
    torch.export.save(program, path)
    result = compare(path, engines, noise=False)
    assert result.reference == "torch"
    assert {row.engine for row in result.rows} >= ({"torch"} if engines else {"tvm", "tvm_ext", "torch"})
    for row in result.rows:
        assert row.error is None, f"{row.label}: {row.error}"
        if row.engine != "torch":
            assert row.relative_error is not None
            assert row.relative_error < 1e-5


def test_modules_run_in_the_tvm_engines() -> None:
    from tvm.script import ir as I
    from tvm.script import relax as R

    @I.ir_module
    class Module:
        @R.function
        def main(b: R.Tensor((3, 4), "float32"), a: R.Tensor((4,), "float32")) -> R.Tensor((3, 4), "float32"):
            return R.nn.relu(R.add(b, a))

    result = compare(Module, noise=False)
    assert [row.engine for row in result.rows] == ["tvm", "tvm_ext"]
    assert [row.error for row in result.rows] == [None, None]
    assert result.reference is None


def test_engines_keep_extents_open() -> None:
    model = get("tiny_mlp").onnx_model()
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    engines = [name for name in ("tvm_ext", "onnxruntime", "openvino") if not ENGINES[name].missing("onnx")]
    result = compare(model, engines, dynamic="batch=1..64", size={"batch": 7}, noise=False, threads=1)
    assert [row.error for row in result.rows] == [None] * len(engines)
    assert all(row.relative_error < 1e-4 for row in result.rows if row.relative_error is not None)


def test_openvino_is_given_the_ranges_of_open_extents() -> None:
    module = load("openvino")
    entry = get("tiny_mlp")
    model = entry.onnx_model()
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    with open_subject(model, dynamic="batch=2..9", size={"batch": 5}) as subject:
        asked = job(subject.path, subject.inputs, ranges=subject.ranges, importing=subject.importing)
        engine = module.Engine(asked)
        (port,) = engine._request.get_compiled_model().inputs
    assert str(port.partial_shape) == "[2..9,32]"
    engine.run()
    (outputs,) = engine.outputs()
    assert outputs.shape[0] == 5


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_peers_write_nothing_at_home_and_report_nothing(name: str, tmp_path: Path) -> None:
    """Both gather figures of their use, by default, as soon as they are imported."""
    for package in ENGINES[name].packages["onnx"]:
        pytest.importorskip(package)
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "ORT_DISABLE_TELEMETRY")}
    command = [sys.executable, "-c", f"import tvm_ext.bench.peers.{name}_engine as engine; print(engine.version())"]
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run(command, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
