"""What only a GPU can show: results of compiled models, graphs, threads, artifacts, tuning, commands, errors."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import relax as R

import tvm_ext
from scripts.cuda.kernels import operator_modules
from tests.commands import real_command
from tests.cuda.test_tunable_rules import module
from tests.zoo import get
from tvm_ext.artifact.device_errors import device_error
from tvm_ext.backends.cuda.toolkit import can_compile
from tvm_ext.errors import TargetError, TvmExtError
from tvm_ext.inputs import random_inputs
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune


def reason() -> str:
    """Say why nothing of this can run here; ``""`` where it can."""
    if not tvm.cuda(0).exist:
        return "this machine has no NVIDIA GPU, or no driver that CUDA 13 runs on"
    return can_compile()


pytestmark = pytest.mark.skipif(bool(reason()), reason=reason() or "there is a GPU")

MODELS = ("tiny_cnn", "tiny_mlp", "tiny_transformer", "tiny_lstm")
PRECISION = {"float32": 2e-4, "tf32": 1e-2, "float16": 2e-2}
SIZES = (1, 3, 7, 17, 33, 127)


def arch() -> str:
    return "sm_" + str(tvm.cuda(0).compute_version).replace(".", "")


def target() -> dict[str, str]:
    return {"kind": "cuda", "arch": arch()}


def agree(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    for name, wanted in expected.items():
        if wanted.dtype.kind == "f":
            scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)) or 1.0
            np.testing.assert_allclose(found[name], wanted, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def products() -> tvm.IRModule:
    weights = np.random.default_rng(0).standard_normal((48, 40)).astype("float32")
    return module([(33, 48)], lambda x: R.nn.softmax(R.nn.relu(R.matmul(x, R.const(weights))), -1))


@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_the_cpu(name: str, precision: str) -> None:
    """The other path is this package's CPU backend, which is compared with onnxruntime elsewhere."""
    entry = get(name)
    arguments = {"input_shapes": entry.input_shapes()}
    on_cpu = tvm_ext.compile(entry.onnx_path(), "native", **arguments)
    inputs = random_inputs(on_cpu.inputs, seed=1)
    on_gpu = tvm_ext.compile(entry.onnx_path(), target(), precision=precision, **arguments)
    agree(on_gpu.run(inputs), on_cpu.run(inputs), PRECISION[precision])


@pytest.mark.parametrize("size", SIZES)
def test_operators_of_awkward_sizes(size: int) -> None:
    for name, mod in operator_modules((size,), seed=size):
        on_cpu = tvm_ext.compile(mod, "native")
        inputs = random_inputs(on_cpu.inputs, seed=size)
        agree(tvm_ext.compile(mod, target()).run(inputs), on_cpu.run(inputs), PRECISION["float32"]), name


def test_the_call_that_users_know() -> None:
    """``tvm.compile`` with the pipeline's name, and TVM's own virtual machine."""
    executable = tvm.compile(products(), tvm.target.Target(target(), host="llvm"), relax_pipeline="tvm_ext")
    machine = tvm.relax.VirtualMachine(executable, tvm.cuda(0))
    values = np.random.default_rng(2).standard_normal((33, 48)).astype("float32")
    found = machine["main"](tvm.runtime.tensor(values, tvm.cuda(0))).numpy()
    expected = tvm_ext.compile(products(), "native").run([values])
    np.testing.assert_allclose(found, next(iter(expected.values())), atol=2e-4)


def test_not_a_number_stays() -> None:
    values = np.full((33, 48), np.nan, "float32")
    values[1] = 1.0
    (found,) = tvm_ext.compile(products(), target()).run([values]).values()
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


def test_truth_values_and_what_the_host_computes() -> None:
    """Vectors of truth values were stored as twice as many bytes; ``nonzero`` is a function of the host."""
    for size in SIZES:
        values = np.random.default_rng(size).standard_normal((size, 4)).astype("float32")
        for build in (
            lambda x: R.less(x, R.const(0.0)),
            lambda x: R.logical_not(R.less(x, R.const(0.0))),
            lambda x: R.where(R.less(x, R.const(0.0)), x, R.const(1.0)),
            lambda x: R.nonzero(R.maximum(x, R.const(0.0))),
        ):
            mod = module([(size, 4)], build)
            agree(tvm_ext.compile(mod, target()).run([values]), tvm_ext.compile(mod, "native").run([values]), 1e-6)


def test_cuda_graphs_give_the_same_each_time() -> None:
    entry = get("tiny_cnn")
    plain = tvm_ext.compile(entry.onnx_path(), target())
    captured = tvm_ext.compile(entry.onnx_path(), target(), cuda_graphs=True)
    for seed in range(3):
        inputs = random_inputs(plain.inputs, seed=seed)
        agree(captured.run(inputs), plain.run(inputs), 1e-6)


def test_saved_loaded_and_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    entry = get("tiny_mlp")
    compiled = tvm_ext.compile(entry.onnx_path(), target())
    compiled.save(tmp_path / "out")
    inputs = random_inputs(compiled.inputs, seed=3)
    expected = compiled.run(inputs)
    agree(tvm_ext.load(tmp_path / "out").run(inputs), expected, 1e-6)
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = [word for name in inputs for word in ("--input", f"{name}={tmp_path / name}.npy")]
    done = real_command("run", str(tmp_path / "out"), *given, "--check", str(entry.onnx_path()))
    assert done.code == 0, done.stderr


def test_two_threads_at_a_time() -> None:
    compiled = tvm_ext.compile(get("tiny_cnn").onnx_path(), target())
    inputs = [random_inputs(compiled.inputs, seed=seed) for seed in range(2)]
    expected = [compiled.run(item) for item in inputs]
    faults: list[BaseException] = []

    def many(number: int) -> None:
        try:
            for _ in range(50):
                agree(compiled.run(inputs[number]), expected[number], 1e-6)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize("tuner", ["evolution_shared", "chameleon_validity"])
def test_eight_trials(tuner: str, tmp_path: Path) -> None:
    resolved = tvm_ext.target.resolve_target(target())
    result = tune(products(), resolved, tmp_path, 8, recipe(tuner, batch=4, initial=4), batch=4)
    assert result.trials == 8
    assert sum(kernel.best is not None for kernel in result.kernels) == len(result.kernels)
    assert all(1e-7 < kernel.best < 1e-3 for kernel in result.kernels if kernel.best is not None)
    compiled = tvm_ext.compile(products(), target(), work_dir=tmp_path)
    values = np.random.default_rng(2).standard_normal((33, 48)).astype("float32")
    expected = tvm_ext.compile(products(), "native").run([values])
    agree(compiled.run([values]), expected, 2e-4)


def test_wide_products_and_groups() -> None:
    """On Hopper the first is multiplied by ``wgmma``, whose code is for that architecture alone."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((1024, 512)).astype("float32") / 32
    filters = rng.standard_normal((64, 16, 3, 3)).astype("float32") / 12
    for mod in (
        module([(200, 1024)], lambda x: R.nn.relu(R.matmul(x, R.const(weights)))),
        module([(2, 32, 13, 13)], lambda x: R.nn.relu(R.nn.conv2d(x, R.const(filters), padding=1, groups=2))),
    ):
        on_cpu = tvm_ext.compile(mod, "native")
        inputs = random_inputs(on_cpu.inputs, seed=1)
        on_gpu = tvm_ext.compile(mod, target(), precision="float16")
        agree(on_gpu.run(inputs), on_cpu.run(inputs), PRECISION["float16"])


def test_the_commands(tmp_path: Path) -> None:
    path = str(get("tiny_mlp").onnx_path())
    where = json.dumps(target())
    done = real_command(
        "tune", path, "--target", where, "--work-dir", str(tmp_path / "tuned"), "--trials", "8", "--batch", "4"
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "8 trials" in done.stdout
    done = real_command("bench", path, "--target", where, "--json", "-", "--repeats", "10", "--budget", "2")
    assert done.code == 0, done.stderr
    rows = {row["engine"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["tvm_ext"]["median_ms"] > 0
    assert rows["tvm"]["median_ms"] > 0


def test_another_architecture_is_refused() -> None:
    compiled = tvm_ext.compile(products(), {"kind": "cuda", "arch": "sm_120"})
    with pytest.raises(TargetError, match=rf"sm_120.*{arch()}"):
        compiled.run([np.zeros((33, 48), "float32")])


def test_out_of_device_memory() -> None:
    """A result that no GPU has room for; afterwards the device still works."""
    huge = module([(1, 1 << 20), (1 << 20, 1)], lambda x, y: R.add(x, y))
    compiled = tvm_ext.compile(huge, target())
    ones = [np.ones((1, 1 << 20), "float32"), np.ones((1 << 20, 1), "float32")]
    with pytest.raises(TvmExtError, match="memory of the GPU is full"):
        compiled.run(ones)
    small = tvm_ext.compile(products(), target())
    assert np.isfinite(next(iter(small.run([np.ones((33, 48), "float32")]).values()))).all()


def test_the_sentence_for_memory_is_of_this_driver() -> None:
    with pytest.raises(Exception, match=r"(?i)memory") as caught:
        tvm.runtime.empty((1 << 46,), "float32", tvm.cuda(0))
    assert "memory of the GPU is full" in device_error(str(caught.value))
