"""CUDA targets without a GPU: how they are named, what is compiled for them, and what is said of bad input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from tests.commands import real_command
from tests.cuda.whole_model import EmulatedModel
from tests.schedules.kernels import graph
from tests.zoo import get
from tvm_ext.artifact.device_errors import device_error, older_gpu
from tvm_ext.backends.cuda.backend import CUDA
from tvm_ext.backends.cuda.kernel_limits import over_a_limit, within_limits
from tvm_ext.backends.cuda.narrow_vectors import narrow_vectors
from tvm_ext.backends.cuda.target import KNOWN_ARCHITECTURES
from tvm_ext.backends.registry import backend_of
from tvm_ext.compiler import lower
from tvm_ext.errors import CompileError, OptionError, TargetError
from tvm_ext.options import PipelineOptions
from tvm_ext.registration import CUDA_PRODUCTS
from tvm_ext.schedules.cuda.machine import PRODUCTS, compute_capability, machine_of
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, apply_schedule_rules
from tvm_ext.target import resolve_target

NO_GPU = pytest.mark.skipif(tvm.cuda(0).exist, reason="this machine has a GPU")


def network() -> tvm.IRModule:
    random = np.random.default_rng(0)
    weight = relax.const(random.standard_normal((8, 8, 3, 3)).astype("float32"))
    dense = relax.const(random.standard_normal((8, 10)).astype("float32"))

    def build(_: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1))
        return relax.op.nn.softmax(relax.op.matmul(relax.op.mean(y, [2, 3]), dense))

    return graph(build, [((1, 8, 7, 9), "float32")])


def sources(compiled: Any) -> str:
    (host,) = compiled.executable.mod.imports
    (device,) = host.imports
    assert device.kind == "cuda"
    return str(device.inspect_source())


def test_every_product_has_a_tag_and_figures() -> None:
    assert {row.name: f"sm_{row.compute}" for row in PRODUCTS} == CUDA_PRODUCTS
    for name in CUDA_PRODUCTS:
        target = resolve_target(f"nvidia/{name}")
        assert machine_of(target).name == name
        assert backend_of(target).name == "cuda"
        assert target.host.kind.name == "llvm"


def test_the_figures_are_those_of_data_sheets() -> None:
    """Peak rates are not what the rows hold; they follow from what they hold."""
    dense = {"a100": (19.5e12, 312e12), "h100": (66.9e12, 989e12), "t4": (8.1e12, 65e12), "l4": (30.3e12, 121e12)}
    for row in PRODUCTS:
        if row.name in dense:
            single, half = dense[row.name]
            assert row.flops == pytest.approx(single, rel=0.08)
            assert 2 * row.multiprocessors * row.tensor * row.clock == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize("options", [{}, {"precision": "float16"}, {"precision": "bfloat16"}, {"fuse": "mapping-type"}])
def test_a_network_is_compiled(options: dict[str, str]) -> None:
    compiled = tvm_ext.compile(network(), "nvidia/h100", **options)
    assert compiled.metadata["device"] == "cuda"
    assert compiled.metadata["decisions"]["machine"]["multiprocessors"] == 132
    source = sources(compiled)
    assert source.count("__global__") >= 3
    kind = {"float16": "half", "bfloat16": "nv_bfloat16"}.get(options.get("precision", ""))
    assert kind is None or f"{kind}* __restrict__" in source


def test_the_pipeline_by_name() -> None:
    executable = tvm.compile(network(), resolve_target("nvidia/a100"), relax_pipeline="tvm_ext")
    assert "__global__" in executable.mod.imports[0].imports[0].inspect_source()


def test_the_command_line(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[3, 33] x) => (float[3, 33] y) { y = Softmax(x) }'
    )
    onnx.save(made, tmp_path / "net.onnx")
    arguments = ["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "out"), "--target", "nvidia/h200"]
    result = real_command(*arguments)
    assert result.code == 0, result.stderr
    assert "for nvidia/h200 in" in result.stdout
    if not tvm.cuda(0).exist:
        with pytest.raises(TargetError, match=r"compiled for cuda, and TVM finds no CUDA driver on this machine"):
            tvm_ext.load(tmp_path / "out")


def test_cuda_graphs_capture_what_is_static() -> None:
    def calls(options: PipelineOptions) -> str:
        return lower(network(), resolve_target("nvidia/h100"), options)[0].script()

    assert "cuda_graph.run_or_capture" in calls(PipelineOptions(cuda_graphs=True))
    assert "cuda_graph" not in calls(PipelineOptions())


def test_sums_of_halves_are_float32() -> None:
    module = graph(lambda _, x, y: relax.op.matmul(x, y), [((32, 64), "float16"), ((64, 48), "float16")])
    lowered, _, _ = lower(module, resolve_target("nvidia/h100"), PipelineOptions(disable=("schedule",)))
    (kernel,) = (func for func in lowered.functions.values() if isinstance(func, tirx.PrimFunc))
    assert "= T.float32(0.0)" in kernel.script()
    assert 'Cast("float16"' in kernel.script()


@NO_GPU
def test_running_without_a_gpu_is_refused() -> None:
    compiled = tvm_ext.compile(network(), "nvidia/h100")
    with pytest.raises(TargetError, match="compiled for cuda, and this machine has no cuda device; compile it for"):
        compiled.run({"x0": np.zeros((1, 8, 7, 9), "float32")})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"kind": "cuda", "arch": "sm_61"}, "'sm_61' is no architecture .* no code for GPUs before Turing.*sm_75"),
        ({"kind": "cuda", "arch": "sm_95"}, "'sm_95' is no architecture .*did you mean sm_90"),
        ({"kind": "cuda", "arch": "sm_101x"}, "'sm_101x' is no architecture .*did you mean sm_110.*known are sm_75"),
        ({"kind": "cuda", "arch": "sm_101"}, "'sm_101' is no architecture .*did you mean sm_110"),
        ({"kind": "cuda", "arch": "sm_80a"}, "suffix a begins with sm_90, f with sm_100.; did you mean sm_80"),
        ({"kind": "cuda", "arch": "sm_90f"}, "suffix a begins with sm_90, f with sm_100.; did you mean sm_90"),
        ({"kind": "cuda", "arch": "sm_100af"}, "'sm_100af' is no architecture .*did you mean sm_100"),
        ("nvidia/foo", "unknown target 'nvidia/foo'.*did you mean nvidia/"),
        ({"kind": "cuda", "arch": "hopper"}, "arch: 'hopper' is no architecture of NVIDIA GPUs, .* as in sm_90$"),
        ({"kind": "cuda", "arch": "90"}, "arch: '90' is no architecture .*did you mean sm_90"),
        ({"kind": "cuda", "arch": "compute_100f"}, "'compute_100f' is no architecture .*did you mean sm_100f"),
        ({"kind": "cuda", "arch": "SM_86"}, "'SM_86' is no architecture .*did you mean sm_86"),
        ({"kind": "cuda", "arch": ""}, "'' is no architecture of NVIDIA GPUs"),
        ({"kind": "cuda", "arch": "sm_90", "model": "h1"}, "field model: no figures of 'h1' are known; known are t4"),
        ({"kind": "cuda", "arch": "sm_90", "model": "a100"}, "a100 is of architecture sm_80, the target says sm_90"),
        ("nvidia/h10", "did you mean nvidia/h100"),
        ("nvidia/jetson", "did you mean nvidia/jetson-agx-orin-32gb or .* or nvidia/jetson-agx-thor"),
        ("thor", "did you mean nvidia/jetson-agx-thor"),
    ],
)
def test_wrong_targets(target: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_target(target)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_threads", 32, "sm_86 has 1024 threads in a block, 32 was given; leave the field out"),
        ("max_num_threads", 2048, "sm_86 has 1024 threads in a block, 2048 was given"),
        ("max_num_threads", 0, "sm_86 has 1024 threads in a block, 0 was given"),
        ("max_threads_per_block", 100, "sm_86 has 1024 threads in a block, 100 was given"),
        ("thread_warp_size", 64, "sm_86 has 32 threads in a warp, 64 was given"),
        ("registers_per_block", -1, "sm_86 has 65536 registers for a block, -1 was given"),
        ("l2_cache_size_bytes", -1, "-1 is no number of bytes"),
        ("max_shared_memory_per_block", 0, "a block on sm_86 may have 49152 to 101376 bytes, 0 were given"),
        ("max_shared_memory_per_block", 232448, "a block on sm_86 may have 49152 to 101376 bytes, 232448 were given"),
    ],
)
def test_limits_that_the_architecture_does_not_have(field: str, value: int, message: str) -> None:
    """They were passed over, zero threads with a division by zero inside TVM."""
    with pytest.raises(TargetError, match=f"target field {field}: {message}"):
        resolve_target({"kind": "cuda", "arch": "sm_86", field: value})


@pytest.mark.parametrize("said", ["nvidia/jetson", "nvidia/quadro"])
def test_targets_that_are_proposed_are_accepted(said: str) -> None:
    """Boards were proposed that are refused themselves."""
    with pytest.raises(TargetError) as refused:
        resolve_target(said)
    proposed = re.findall("nvidia/[a-z0-9-]+", str(refused.value).split("did you mean ")[1].split("?")[0])
    assert proposed
    for tag in proposed:
        resolve_target(tag)


def test_a_target_that_is_an_object_is_checked_too() -> None:
    with pytest.raises(TargetError, match="'sm_61' is no architecture"):
        resolve_target(tvm.target.Target({"kind": "cuda", "arch": "sm_61"}))


def test_limits_of_tvms_own_tags() -> None:
    for tag in tvm.target.list_tags():
        target = tvm.target.Target(tag)
        if target.kind.name == "cuda" and compute_capability(str(target.attrs["arch"])) in KNOWN_ARCHITECTURES:
            resolve_target(tag)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_100f", "sm_110", "sm_121a"])
def test_architectures_with_a_suffix(arch: str) -> None:
    assert machine_of(resolve_target({"kind": "cuda", "arch": arch})).compute == int(arch[3:].rstrip("af"))


def test_options_of_other_targets() -> None:
    with pytest.raises(OptionError, match="precision: float16 is for CUDA targets; for target llvm"):
        tvm_ext.compile(network(), precision="float16")
    with pytest.raises(OptionError, match="cuda_graphs is for CUDA targets"):
        tvm_ext.compile(network(), cuda_graphs=True)
    with pytest.raises(OptionError, match="sm_75 has no arithmetic in bfloat16, which begins with sm_80"):
        tvm_ext.compile(network(), "nvidia/t4", precision="bfloat16")
    with pytest.raises(OptionError, match="precision: unknown value 'float8', candidates are float32, float16"):
        tvm_ext.compile(network(), "nvidia/t4", precision="float8")


def _kernel(threads: int, elements: int, scope: str, blocks: int = 1) -> tirx.PrimFunc:
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((threads,), "float32"), y: T.Buffer((threads,), "float32")) -> None:
        T.func_attr({"tirx.is_scheduled": True})
        kept = T.sblock_alloc_buffer((elements,), "float32", scope=scope)
        for _block in T.thread_binding(blocks, thread="blockIdx.y"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("fill"):
                    T.reads(x[thread])
                    T.writes(kept[0:elements])
                    kept[thread % elements] = x[thread]
                    kept[elements - 1] = T.float32(0)
                with T.sblock("use"):
                    T.reads(kept[0:elements])
                    T.writes(y[thread])
                    y[thread] = kept[thread % elements]

    return kernel


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ((2048, 8, "shared"), "kernel big has 2048 x 1 x 1 threads in a block, sm_80 starts 1024 at most"),
        ((32, 13000, "shared"), "kernel big declares 52000 bytes of static shared memory, 49152 are the most"),
        ((32, 50000, "shared.dyn"), "kernel big takes 200000 bytes of shared memory, a block on sm_80 has 166912"),
        ((32, 8, "shared", 70000), "kernel big has 70000 blocks along y, 65535 are the most"),
    ],
)
def test_kernels_over_a_limit(kernel: tuple[Any, ...], message: str) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((kernel[0],), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            variable = builder.add_func(_kernel(*kernel), "big")
            result = builder.emit_output(relax.call_tir(variable, [x], relax.TensorType((kernel[0],), "float32")))
        builder.emit_func_output(result)
    with pytest.raises(CompileError, match=message):
        tvm_ext.compile(builder.get(), "nvidia/a100")


def test_a_schedule_over_a_limit_is_given_up_for_the_next() -> None:
    """Whatever made it: here a pass that stands for a tuning database gives a kernel more threads than there are."""

    @tvm.transform.module_pass(opt_level=0)
    def too_many_threads(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        schedule = tvm.s_tir.Schedule(mod)
        (loop,) = schedule.get_loops("plus")
        schedule.bind(loop, "threadIdx.x")
        return tvm.IRModule({"main": schedule.mod["main"].with_attr("tirx.is_scheduled", True)})

    data = te.placeholder((2000,), name="data")
    func = te.create_prim_func([data, te.compute((2000,), lambda i: data[i] + 1.0, name="plus")])
    before = tvm.IRModule({"main": func})
    with resolve_target("nvidia/a100"):
        after = within_limits(too_many_threads)(before)
        assert "has 2000 x 1 x 1 threads in a block" in after["main"].attrs[FAULT_ATTRIBUTE]
        assert "thread_binding" not in after.script()
        taken = apply_schedule_rules(CUDA.rules, over_a_limit)(after)
    assert taken["main"].attrs[RULE_ATTRIBUTE] == "cuda.elementwise"


def test_vectors_of_a_cpu_are_no_vectors_of_cuda() -> None:
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float16")) -> None:
        for i in T.thread_binding(4, thread="threadIdx.x"):
            for j in T.vectorized(16):
                y[i * 16 + j] = T.Cast("float16", x[i * 16 + j])
            for j in T.vectorized(4):
                y[i * 4 + j] = T.Cast("float16", x[i * 4 + j])

    with resolve_target("nvidia/a100"):
        after = narrow_vectors()(tvm.IRModule({"main": kernel}))
    assert "in range(16)" in after.script()
    assert "in T.vectorized(4)" in after.script()


@pytest.mark.parametrize(
    ("message", "meaning"),
    [
        ("InternalError: CUDA: out of memory", "memory of the GPU is full"),
        ("CUDA: CUDA driver version is insufficient for CUDA runtime version", "driver of this machine is older"),
        ("CUDAError: cuModuleLoadData failed with error: CUDA_ERROR_NO_BINARY_FOR_GPU", "for another architecture"),
        ("No such file or directory: 'nvcc'", "has no compiler for them"),
        ("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE\n grid=(1,1,1)", "more than a block may have"),
        ("CUDA: an illegal memory access was encountered", "left its tensors"),
        ("the roof is on fire", ""),
    ],
)
def test_what_the_driver_says_is_explained(message: str, meaning: str) -> None:
    found = device_error(message)
    assert meaning in found
    assert bool(found) == bool(meaning)


@I.ir_module
class _Empty:
    @R.function
    def main(x: R.Tensor((0, 3), "float32")) -> R.Tensor((0, 3), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y


def test_a_tensor_without_elements() -> None:
    assert tvm_ext.compile(_Empty, "nvidia/h100").metadata["device"] == "cuda"


@pytest.mark.parametrize(
    ("arch", "found", "refused"),
    [
        ("sm_100", "9.0", True),
        ("sm_90a", "9.0", False),
        ("sm_80", "9.0", False),
        ("sm_120", "10.3", True),
        ("", "9.0", False),
    ],
)
def test_an_artifact_for_a_newer_gpu(arch: str, found: str, refused: bool) -> None:
    said = older_gpu(arch, found)
    assert bool(said) == refused
    assert not refused or (arch in said and "compile it for" in said)


@NO_GPU
@pytest.mark.parametrize("command", [("tune", "--work-dir", "tuned"), ("bench",)])
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nvidia/h100", "no NVIDIA GPU"),
        ("nvidia/h900", "h900"),
        ('{"kind": "cuda", "arch": "sm_37"}', "before Turing"),
        ('{"kind": "cuda", "arch": "sm_9o"}', "did you mean"),
    ],
)
def test_what_commands_say_without_a_gpu(command: tuple[str, ...], target: str, words: str, tmp_path: Path) -> None:
    path = str(get("tiny_mlp").onnx_path())
    given = [str(tmp_path / word) if word == "tuned" else word for word in command]
    done = real_command(*given, path, "--target", target)
    assert words in done.error(done.code)
    assert done.code not in (0, 1)


@pytest.mark.parametrize("name", ["matmul", "softmax"])
def test_what_two_results_are_made_of_keeps_its_rule(name: str) -> None:
    """With both behind it in one kernel each thread went through a row of its own."""

    def build(builder: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        y = builder.emit(R.matmul(x, w) if name == "matmul" else R.nn.softmax(x))
        return relax.Tuple([builder.emit(R.nn.relu(y)), builder.emit(R.multiply(y, R.const(2.0)))])

    model = EmulatedModel(graph(build, [((33, 64), "float32"), ((64, 64), "float32")]), fuse="mapping-type")
    x, w = (
        np.random.default_rng(seed).standard_normal((rows, 64)).astype("float32") for seed, rows in ((0, 33), (1, 64))
    )
    y = x @ w if name == "matmul" else np.exp(x) / np.exp(x).sum(1, keepdims=True)
    for have, want in zip(model(x, w), (np.maximum(y, 0), 2 * y), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    assert {"cuda.matmul", "cuda.row_reduction"} & set(model.rules.values())
    assert "cuda.window" not in model.rules.values()
