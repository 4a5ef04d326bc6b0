"""The cases of a pack: what is checked, products, attention, kernels bound by memory, tiles to rank, and models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir import dlight as dl
from tvm.script import relax as R

from scripts.cuda.emulate import with_results
from scripts.cuda.kernels import Kernel, kernels_of, model_kernels, operator_modules, target_of
from scripts.cuda.pack import Case, program
from tests.zoo import get
from tests.zoo.quantized import quantized
from tvm_ext.backends.cuda.async_copies import with_async_copies
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.passes.mixed_precision import mixed_precision
from tvm_ext.phases import Phase
from tvm_ext.pipeline import checked_options
from tvm_ext.schedules.cuda.launch_bounds import with_resident_blocks
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.registers import registers_of_lanes
from tvm_ext.schedules.cuda.tensor_matmul import schedule_tensor_product
from tvm_ext.schedules.cuda.tensor_tile import tensor_seconds, tensor_use
from tvm_ext.schedules.cuda.warpgroup_matmul import schedule_warpgroup_product
from tvm_ext.schedules.cuda.warpgroup_tile import warpgroup_seconds, warpgroup_use
from tvm_ext.schedules.rule import new_schedule

LARGE = (4096, 8192)
RANKED = ((4096, 4096, 1024), (512, 512, 512), (197, 768, 3072), (3136, 64, 576), (49, 512, 4608), (128, 1000, 2048))
"""Rows, columns and depth of products that are measured with several tiles; the cost model was fitted to them."""

HELD_OUT = ((784, 256, 1152), (256, 3072, 768), (1024, 1024, 1024), (64, 2048, 512), (2048, 768, 256))
"""Products that judge the cost model: it has not seen them."""

TILES = (
    Tile(128, 256, 64, 64, 64, 1, 3), Tile(128, 128, 64, 64, 64, 1, 3), Tile(128, 128, 32, 64, 32, 1, 4),
    Tile(64, 128, 32, 32, 32, 1, 2), Tile(64, 64, 32, 32, 32, 1, 5), Tile(64, 64, 64, 32, 16, 1, 3),
    Tile(32, 64, 64, 16, 32, 1, 5), Tile(32, 32, 64, 16, 16, 1, 2), Tile(16, 16, 64, 16, 16, 1, 4),
    Tile(64, 64, 64, 32, 32, 4, 3), Tile(32, 32, 64, 16, 16, 4, 5), Tile(64, 64, 32, 32, 32, 16, 3),
)  # fmt: skip
"""Tiles on tensor cores that are ranked."""

WARPGROUP_TILES = (
    Tile(128, 256, 64, 64, 256, 1, 4), Tile(128, 128, 64, 64, 128, 1, 6), Tile(64, 256, 64, 64, 256, 1, 5),
    Tile(64, 128, 64, 64, 128, 1, 4), Tile(64, 64, 64, 64, 64, 1, 4), Tile(64, 64, 64, 64, 64, 4, 4),
    Tile(128, 128, 64, 64, 128, 3, 4),
)  # fmt: skip
"""Of warpgroups, likewise."""


def check_cases(arch: str, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Case]:
    """Kernels of small models and of operators in awkward sizes, with results of this machine's CPU."""
    target = target_of(arch)
    for model in names:
        for options in ({}, {"precision": "float16"}, {"precision": "tf32"}):
            if model.endswith("int8") and options:
                continue
            for kernel in model_kernels(model, target, **options):
                if kernel.before is not None:
                    yield _checked(f"check-{model}-{options.get('precision', 'plain')}-{kernel.name}", kernel)
    for name, mod in operator_modules(sizes):
        for kernel in kernels_of(name, mod, target):
            if kernel.before is not None:
                yield _checked(f"check-{name.replace(' ', '-')}-{kernel.name}", kernel)


def product_cases(arch: str, sizes: Sequence[int] = LARGE) -> Iterator[Case]:
    """Square products in float16, beside cuBLAS."""
    for size in sizes:
        mod = _module([((size, size), "float16")] * 2, lambda x, y: R.matmul(x, y))
        about = {"rows": size, "columns": size, "depth": size}
        yield _whole(f"gemm-{size}", "gemm", about, mod, arch)


def attention_cases(
    arch: str, lengths: Sequence[int] = (512, 2048), heads: int = 16, width: int = 64
) -> Iterator[Case]:
    """Attention in float16, beside PyTorch's."""
    for length in lengths:
        shapes = [((1, heads, length, width), "float16")] * 3
        about = {"heads": heads, "length": length, "width": width}
        yield _whole(f"attention-{length}", "attention", about, _module(shapes, _attention), arch)


def memory_cases(arch: str, size: int = 8192) -> Iterator[Case]:
    """Kernels that move bytes, with how many."""
    matrix, vector = ((size, size), "float32"), ((size,), "float32")
    works = {
        "add": ([matrix, matrix], lambda x, y: R.add(x, y), 3),
        "softmax": ([matrix], lambda x: R.nn.softmax(x, -1), 2),
        "layer_norm": ([matrix, vector, vector], lambda x, g, b: R.nn.layer_norm(x, g, b, -1), 2),
        "transpose": ([matrix], lambda x: R.permute_dims(x, [1, 0]), 2),
        "sum": ([matrix], lambda x: R.sum(x, [1]), 1),
    }
    for name, (shapes, build, moved) in works.items():
        about = {"bytes": 4 * size * size * moved}
        yield _whole(f"memory-{name}", "memory", about, _module(shapes, build), arch)


def rank_cases(arch: str, shapes: Sequence[tuple[int, int, int]] = (*RANKED, *HELD_OUT)) -> Iterator[Case]:
    """Make the same product with several tiles, each with the seconds that the cost model gives it."""
    target = target_of(arch)
    machine = machine_of(target)
    ways = [("mma.sync", tile) for tile in TILES]
    ways += [("wgmma", tile) for tile in WARPGROUP_TILES] if machine.has_warpgroups else []
    for rows, columns, depth in shapes:
        mod = _module([((rows, depth), "float16"), ((depth, columns), "float16")], _wide)
        kernel = kernels_of("rank", mod, target)[0]
        assert kernel.before is not None
        for number, (by, tile) in enumerate(ways):
            schedule = new_schedule(kernel.before)
            product = find_product(schedule)
            fewest = 2 if by == "mma.sync" else tile.stages + 1
            if product is None or depth < fewest * tile.parts * tile.depth:
                continue
            if by == "wgmma":
                make, use, seconds = schedule_warpgroup_product, warpgroup_use(tile), warpgroup_seconds
            else:
                make, use, seconds = schedule_tensor_product, tensor_use(product, tile), tensor_seconds
            try:
                make(schedule, product, tile, machine, ("float16", "float16"))
            except ScheduleError:
                continue
            blocks = max(1, use.resident(machine))
            scheduled = with_resident_blocks(registers_of_lanes(schedule.mod["main"]), blocks)
            scheduled = with_async_copies(scheduled, target)
            about = {"rows": rows, "columns": columns, "depth": depth, "tile": str(tile), "by": by}
            about |= {"held_out": (rows, columns, depth) not in RANKED}
            made = Kernel("rank", kernel.name, kernel.before, scheduled)
            estimated = seconds(product, tile, machine)
            yield _single(f"rank-{rows}x{columns}x{depth}-{number}", "rank", about, made, estimated)


def model_cases(arch: str, models: Sequence[str]) -> Iterator[Case | tuple[str, str]]:
    """Models in float16 by this package and by TVM's DLight; a name and a reason for what cannot be packed."""
    for name in models:
        for how in ("tvm_ext", "dlight"):
            try:
                entry = get(name)
                mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
                lowered = _phases(mod, arch, dlight=how == "dlight")
                yield _program(f"model-{name}-{how}", "model", {"model": name, "how": how}, lowered, False)
            except Exception as error:  # whatever a model raises is its row
                yield f"model-{name}-{how}", f"{type(error).__name__}: {str(error).splitlines()[0]}"


def whole_model_case(arch: str, name: str) -> Case:
    """Make a small model from end to end, with results of this machine's CPU."""
    plain, _, kind = name.rpartition("_")
    entry = quantized(plain, activations=kind) if kind in ("int8", "uint8") else get(name)
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    inputs = entry.inputs()
    modules = _lowered(mod, arch, {})
    machine = relax.VirtualMachine(tvm.compile(modules["fuse"], "llvm"), tvm.cpu())
    expected = machine["main"](*(tvm.runtime.tensor(array) for array in inputs.values()))
    results = [expected] if isinstance(expected, tvm.runtime.Tensor) else list(expected)
    return _program(
        f"whole-{name}", "check", {"model": name}, modules["lower"], True, list(inputs.values()),
        [result.numpy() for result in results],
    )  # fmt: skip


def _wide(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    return R.matmul(x, y, out_dtype="float32")


def _module(specs: Sequence[tuple[tuple[int, ...], str]], build: Any) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i, (shape, dtype) in enumerate(specs)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(result)
    return builder.get()


def _attention(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    scale = R.const(int(q.ty.shape[-1]) ** -0.5, "float16")
    return R.matmul(R.nn.softmax(R.multiply(R.matmul(q, R.permute_dims(k, [0, 1, 3, 2])), scale), -1), v)


def _single(name: str, kind: str, about: dict[str, Any], kernel: Kernel, predicted: float | None = None) -> Case:
    """Make a case of one kernel, whose last argument is its result."""
    tensors = [(tuple(int(size) for size in param.shape), str(param.dtype)) for param in kernel.scheduled.params]
    last = len(tensors) - 1
    return Case(
        name, kind, about, {kernel.name: kernel.scheduled}, [(kernel.name, range(len(tensors)))], tensors,
        dict.fromkeys(range(last)), {last: None}, predicted,
    )  # fmt: skip


def _checked(name: str, kernel: Kernel) -> Case:
    arrays, expected = with_results(kernel)
    changed = [i for i, (a, b) in enumerate(zip(arrays, expected, strict=True)) if not np.array_equal(a, b)]
    tensors = [(tuple(int(size) for size in param.shape), str(param.dtype)) for param in kernel.scheduled.params]
    return Case(
        name, "check", {}, {kernel.name: kernel.scheduled}, [(kernel.name, range(len(tensors)))], tensors,
        dict(enumerate(arrays)), {i: expected[i] for i in changed},
    )  # fmt: skip


def _whole(name: str, kind: str, about: dict[str, Any], mod: tvm.IRModule, arch: str) -> Case:
    return _program(name, kind, about, _lowered(mod, arch, {})["lower"], False)


def _program(
    name: str,
    kind: str,
    about: dict[str, Any],
    mod: tvm.IRModule,
    keep_constants: bool,
    inputs: Sequence[NDArray[Any]] | None = None,
    results: Sequence[NDArray[Any]] | None = None,
) -> Case:
    count = len(mod["main"].params)
    found, places = program(mod, inputs or [None] * count, keep_constants)
    functions = {
        variable.name_hint: func for variable, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)
    }
    known = results or [None] * len(places)
    used = {called for called, _ in found.calls}
    return Case(
        name, kind, about, {name: func for name, func in functions.items() if name in used}, found.calls, found.tensors,
        found.given, dict(zip(places, known, strict=True)),
    )  # fmt: skip


def _lowered(mod: tvm.IRModule, arch: str, options: dict[str, Any]) -> dict[str, tvm.IRModule]:
    modules: dict[str, tvm.IRModule] = {}

    def keep(phase: Phase, after: tvm.IRModule) -> None:
        modules[phase.name] = tvm.IRModule(dict(after.functions_items()))

    lower(mod, target_of(arch), checked_options(options), after_phase=keep)
    return modules


def _phases(mod: tvm.IRModule, arch: str, dlight: bool) -> tvm.IRModule:
    """Lower a model in float16 as far as destinations are explicit, with this package's pipeline or with TVM's."""
    if not dlight:
        return _lowered(mod, arch, {"precision": "float16"})["lower"]
    transform = relax.transform
    passes = [
        transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), mixed_precision("float16"),
        transform.FoldConstant(), transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant(),
        transform.FuseOps(), transform.FuseTIR(),
        dl.ApplyDefaultSchedule(
            dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction(), dl.gpu.Fallback()
        ),
        transform.RewriteDataflowReshape(), transform.ToNonDataflow(), transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
    ]  # fmt: skip
    with target_of(arch):
        return tvm.transform.Sequential(passes)(mod)
