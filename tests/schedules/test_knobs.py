"""Rules as spaces of schedules: the trace starts at the rule's choice, can be resampled, and every sample is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.s_tir import Schedule

from tests.cpu import needs_avx512_vnni
from tests.schedules.kernels import TARGETS, graph
from tvm_ext.layout.relax.blocked_layout import blocked_layout
from tvm_ext.layout.relax.pack_matmul import pack_matmul
from tvm_ext.layout.relax.quantized import LEGALIZATIONS
from tvm_ext.passes.fold_constants import fold_constants
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.quantized import conv2d_int8, depthwise_conv2d_int8
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.winograd_division import Strips
from tvm_ext.schedules.knobs import TunableSchedule, choose, divide
from tvm_ext.schedules.rule import apply_rules, new_schedule, prepare
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace

TARGET = TARGETS["native"]


def _weights(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype("float32") * 0.1, "float32")


def _two_threads() -> tvm.target.Target:
    return tvm.target.Target({**TARGET.export(), "num-cores": 2})


CASES: dict[str, tuple[Callable[..., relax.Expr], list[tuple[tuple[int, ...], str]]]] = {
    "cpu.convolution": (
        lambda bb, x: relax.op.nn.relu(bb.normalize(relax.op.nn.conv2d(x, _weights(64, 32, 3, 3), padding=1))),
        [((1, 32, 28, 28), "float32")],
    ),
    "cpu.convolution (transposed)": (
        lambda bb, x: relax.op.nn.conv2d_transpose(x, _weights(32, 32, 2, 2), strides=2),
        [((1, 32, 14, 14), "float32")],
    ),
    "cpu.convolution (few positions)": (
        lambda bb, x: relax.op.nn.conv2d(x, _weights(144, 48, 1, 1)),
        [((1, 48, 10, 10), "float32")],
    ),
    "cpu.winograd": (lambda bb, x: relax.op.nn.conv2d(x, _weights(320, 320, 3, 3)), [((1, 320, 15, 15), "float32")]),
    "cpu.sliding_window": (
        lambda bb, x: relax.op.nn.conv2d(x, _weights(32, 1, 3, 3), padding=1, groups=32),
        [((1, 32, 56, 56), "float32")],
    ),
    "cpu.global_average": (
        lambda bb, x: relax.op.nn.adaptive_avg_pool2d(
            bb.normalize(relax.op.nn.conv2d(x, _weights(32, 32, 1, 1))), (1, 1)
        ),
        [((1, 32, 64, 64), "float32")],
    ),
    "cpu.matmul": (
        lambda bb, x: relax.op.nn.gelu(bb.normalize(relax.op.matmul(x, _weights(96, 160)))),
        [((60, 96), "float32")],
    ),
    "cpu.matmul (few rows)": (
        lambda bb, x: relax.op.matmul(x, _weights(500, 1040)),
        [((24, 500), "float32")],
    ),
    "cpu.matvec": (
        lambda bb, x, y: relax.op.matmul(x, bb.normalize(relax.op.permute_dims(y, (1, 0)))),
        [((1, 512), "float32"), ((1024, 512), "float32")],
    ),
    "cpu.row_reduction": (lambda bb, x: relax.op.nn.softmax(x, -1), [((600, 300), "float32")]),
    "cpu.transpose": (lambda bb, x: relax.op.permute_dims(x, (0, 2, 1)), [((8, 256, 192), "float32")]),
    "cpu.elementwise": (lambda bb, x, y: relax.op.add(x, y), [((512, 600), "float32"), ((512, 1), "float32")]),
    "cpu.fallback": (lambda bb, x, y: relax.op.matmul(x, y), [((200, 60), "float32"), ((60, 96), "float32")]),
}


def _conv2d_int8() -> tvm.tirx.PrimFunc:
    data = te.placeholder((1, 2, 28, 28, 16), "uint8", "data")
    weight = te.placeholder((4, 2, 3, 3, 4, 16, 4), "int8", "weight")
    return te.create_prim_func([data, weight, conv2d_int8(data, weight, (1, 1), (1,) * 4, (1, 1), 128)])


def _depthwise_int8() -> tvm.tirx.PrimFunc:
    data = te.placeholder((1, 4, 56, 56, 16), "uint8", "data")
    weight = te.placeholder((4, 3, 1, 16, 4), "int8", "weight")
    return te.create_prim_func([data, weight, depthwise_conv2d_int8(data, weight, (1, 1), (1,) * 4, (1, 1), 3, 128)])


INTEGER_CASES = {"cpu.conv2d_int8": _conv2d_int8, "cpu.depthwise_int8": _depthwise_int8}


def _kernels(name: str) -> dict[str, tvm.tirx.PrimFunc]:
    if name in INTEGER_CASES:
        return {"main": INTEGER_CASES[name]()}
    build, inputs = CASES[name]
    transform = relax.transform
    layout = [] if name == "cpu.fallback" else [blocked_layout(name == "cpu.winograd"), pack_matmul()]
    passes = [
        fold_constants(), *layout, transform.DeadCodeElimination(),
        transform.LegalizeOps(LEGALIZATIONS), transform.AnnotateTIROpPattern(), transform.FoldConstant(),
        transform.FuseOps(), transform.FuseTIR(),
    ]  # fmt: skip
    with _two_threads(), pytest.MonkeyPatch.context() as patch:
        # Three kernels, as a search over whole networks may choose.
        patch.setattr("tvm_ext.layout.convolution_plan.choose_strips", lambda *_: Strips())
        mod = tvm.transform.Sequential(passes)(graph(build, inputs))
    return {var.name_hint: func for var, func in mod.functions.items() if isinstance(func, tvm.tirx.PrimFunc)}


def _kernel(name: str) -> tuple[tvm.tirx.PrimFunc, Any]:
    """The kernel of a case that its rule takes, prepared, and the rule."""
    wanted = name.split(" ")[0]
    target = _two_threads()
    for func in _kernels(name).values():
        prepared = prepare(func, target, RULES)
        for rule in RULES:
            if rule.apply(prepared, target) is not None:
                if rule.name == wanted:
                    return prepared.with_attr("global_symbol", "main"), rule
                break
    raise AssertionError(f"no kernel for {wanted}")


def _run(func: tvm.tirx.PrimFunc, arrays: list[np.ndarray]) -> np.ndarray:
    with TARGET:
        mod = vector_code()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(mod, TARGET)["main"](*tensors)
    return tensors[-1].numpy()


def _arrays(func: tvm.tirx.PrimFunc) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    shapes = [[int(extent) for extent in param.ty.shape] for param in func.params]
    dtypes = [str(param.ty.dtype) for param in func.params]
    return [random.standard_normal(shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


@pytest.mark.parametrize(
    "name", [*CASES, "cpu.conv2d_int8", pytest.param("cpu.depthwise_int8", marks=needs_avx512_vnni)]
)
def test_the_trace_starts_at_the_choice_of_the_rule_and_can_be_resampled(name: str) -> None:
    func, rule = _kernel(name)
    target = _two_threads()
    tunable = rule.apply(func, target, tunable=True)
    knobs = [inst for inst in tunable.trace.insts if "Sample" in inst.kind.name]
    assert knobs
    assert len(tunable.trace.decisions) == len(knobs)

    arrays = _arrays(func)
    expected = _run(apply_rules(func, target, RULES), arrays)
    np.testing.assert_allclose(_run(tunable.mod["main"], arrays), expected, rtol=1e-5, atol=1e-5)

    # The same decisions give the same kernel, other ones give kernels that compute the same.
    replayed = Schedule(tvm.IRModule({"main": func}))
    tunable.trace.apply_to_schedule(replayed, remove_postproc=False)
    tvm.ir.assert_structural_equal(replayed.mod["main"], tunable.mod["main"])
    free = tvm.s_tir.schedule.Trace(tunable.trace.insts, {})
    kernels = set()
    for seed in (12345, 271828, 31415926, 1618033988):
        sampled = Schedule(tvm.IRModule({"main": func}), seed=seed)
        free.apply_to_schedule(sampled, remove_postproc=False)
        kernels.add(sampled.mod["main"].script())
        np.testing.assert_allclose(_run(sampled.mod["main"], arrays), expected, rtol=1e-4, atol=1e-4)
    assert len(kernels) > 1


@pytest.mark.parametrize("name", ["cpu.convolution (few positions)", "cpu.matmul (few rows)"])
def test_fetching_ahead_is_a_knob_that_begins_switched_on(name: str) -> None:
    func, rule = _kernel(name)
    mod = tvm.IRModule({"main": func})
    space = TraceSpace.of(rule.apply(func, _two_threads(), tunable=True), mod)
    (knob,) = (number for number, knob in enumerate(space.space.knobs) if "Categorical" in knob.name)
    assert space.space.knobs[knob].choices == (0, 1)
    assert space.space.default[knob] == 1

    arrays = _arrays(func)
    expected = _run(func, arrays)
    for choice in (0, 1):
        vector = list(space.space.default)
        vector[knob] = choice
        schedule = space.schedule(vector)
        assert schedule is not None
        kernel = schedule.mod["main"]
        with _two_threads():
            code = str(vector_code()(tvm.IRModule({"main": kernel})))
        assert ("tvm_ext_prefetch" in code) == bool(choice)
        np.testing.assert_allclose(_run(kernel, arrays), expected, rtol=1e-4, atol=1e-4)


def test_a_choice_of_numbers() -> None:
    buffer = tvm.te.placeholder((60,), name="a")
    func = tvm.te.create_prim_func([buffer, tvm.te.compute((60,), lambda i: buffer[i] + 1.0, name="b")])
    assert choose(new_schedule(func), (3, 5, 8), 5) == 5
    schedule = new_schedule(func, tunable=True)
    choice = choose(schedule, (3, 5, 8), 5)
    assert int(schedule.get(choice)) == 5
    assert [int(decision) for decision in schedule.trace.decisions.values()] == [1]


def test_only_what_factors_divide_is_a_knob() -> None:
    buffer = tvm.te.placeholder((60,), name="a")
    func = tvm.te.create_prim_func([buffer, tvm.te.compute((60,), lambda i: buffer[i] + 1.0, name="b")])
    for factors, knobs in (([None, 4], 1), ([2, None, 3], 1), ([None, 7], 0)):
        schedule = new_schedule(func, tunable=True)
        assert isinstance(schedule, TunableSchedule)
        (loop,) = schedule.get_loops(schedule.get_sblock("b"))
        loops = divide(schedule, loop, factors)
        assert len(loops) == len(factors)
        assert len(schedule.trace.decisions) == knobs
    fixed = new_schedule(func)
    (loop,) = fixed.get_loops(fixed.get_sblock("b"))
    assert [int(fixed.get(part).extent) for part in divide(fixed, loop, [None, 4])] == [15, 4]
    assert not fixed.trace.decisions
