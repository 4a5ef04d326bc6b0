"""Kernels that no rule makes: TVM's own with threads in them, and what computes its elements by loops of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.script import relax as R
from tvm.script import tirx as T

from scripts.cuda.kernels import kernels_of, target_of
from tests.cuda.whole_model import EmulatedModel
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.host_part import host_fault
from tvm_ext.compiler import lower
from tvm_ext.errors import CompileError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

TARGET = target_of("sm_90")


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """Run a graph in the emulator; one of its kernels is TVM's."""
    model = EmulatedModel(mod, TARGET)
    assert "" in model.rules.values()
    results = model(*inputs)
    assert not model.faults
    return results


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize(("shape", "count", "largest"), [((3, 33), 5, True), ((17, 7), 7, False), ((2, 129), 1, True)])
def test_the_largest_and_their_places(shape: Sequence[int], count: int, largest: bool) -> None:
    x = drawn(*shape)
    mod = graph(
        lambda _, x: R.topk(x, k=count, axis=1, ret_type="both", largest=largest, dtype="int64"), [(shape, "float32")]
    )
    values, places = run(mod, x)
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_sorted_rows() -> None:
    x = drawn(5, 127)
    (got,) = run(graph(lambda _, x: R.sort(x, 1, False), [((5, 127), "float32")]), x)
    np.testing.assert_array_equal(got, np.sort(x, 1))


@T.prim_func(private=True, s_tir=True)
def steps_of_their_own(x: T.Buffer((33,), "float32"), n: T.Buffer((33,), "int64"), y: T.Buffer((33,), "float32")):
    """Add up an element as often as another tensor says."""
    for i in range(33):
        with T.sblock("element"):
            vi = T.axis.spatial(33, i)
            T.reads(x[vi], n[vi])
            T.writes(y[vi])
            y[vi] = T.float32(0)
            for _ in range(n[vi]):
                y[vi] = y[vi] + x[vi]


def caller(func: tirx.PrimFunc, inputs: Sequence[tuple[Sequence[int], str]]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    name = builder.add_func(func, "own")
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(relax.call_tir(name, variables, R.Tensor((33,), "float32")))
        builder.emit_func_output(result)
    return builder.get()


def test_loops_within_elements() -> None:
    mod = caller(steps_of_their_own, [((33,), "float32"), ((33,), "int64")])
    (kernel,) = kernels_of("own", mod, TARGET)
    assert str(kernel.scheduled.attrs[RULE_ATTRIBUTE]) == "cuda.nested"
    x, n = drawn(33), np.arange(33)
    done = Emulator(kernel.scheduled, TARGET)([x, n, np.zeros(33, "float32")])
    assert not done.report.faults
    np.testing.assert_allclose(done.arrays[2], x * n, rtol=1e-5)


@T.prim_func(private=True, s_tir=True)
def work_of_the_host(x: T.Buffer((33,), "float32"), y: T.Buffer((33,), "float32")):
    """A block without axes, so that nothing can be bound to threads."""
    with T.sblock("all"):
        for i in range(33):
            y[i] = x[i] * T.float32(2)


def test_work_outside_threads_is_named() -> None:
    fault = host_fault(work_of_the_host.with_attr("global_symbol", "main"), TARGET)
    assert "outside its threads" in fault
    with pytest.raises(CompileError, match=r"kernel own.* on x, y outside its threads.*compile that part for a CPU"):
        kernels_of("own", caller(work_of_the_host, [((33,), "float32")]), TARGET)


def test_a_kernel_that_tvm_cannot_lower() -> None:
    """TVM's suppression of boxes uses a tensor before it is declared."""

    def kernel(boxes: te.Tensor, scores: te.Tensor) -> te.Tensor:
        return topi.vision.all_class_non_max_suppression(boxes, scores, 3, 0.5, 0.1)

    build = lambda builder, boxes, scores: builder.emit_te(kernel, boxes, scores)  # noqa: E731
    mod = graph(build, [((1, 9, 4), "float32"), ((1, 2, 9), "float32")])
    with pytest.raises(CompileError, match=r"kernel kernel cannot be lowered for CUDA.*for a CPU"):
        kernels_of("boxes", mod, TARGET)


def test_the_host_has_its_tensors_copied_to_it() -> None:
    """How many elements are not zero is known when the model runs: TVM's runtime counts them, on CPUs alone."""
    mod = graph(lambda bb, x: R.nonzero(bb.emit(R.nn.relu(x))), [((5, 7), "float32")])
    text = lower(mod, TARGET, PipelineOptions())[0]["main"].script()
    there, counted, back = (text.index(word) for word in (", 1, 0, ty_args", '"relax.run.nonzero"', ", 2, 0, ty_args"))
    assert there < counted < back
    assert text.count('"vm.builtin.to_device"') == 2


@pytest.mark.parametrize(
    ("shape", "axes", "steps"),
    [
        ((1, 196, 9, 32), (0, 2, 3, 1), [(1, 9, 32, 196), (9, 32, 196)]),  # heads of an attention
        ((1, 28, 28, 64), (0, 3, 1, 2), [(1, 2, 32, 28, 28)]),  # parts of channels
        ((4, 12, 64), (2, 0, 1), [(64, 48), (1, 64, 48)]),
    ],
)
def test_transposes_behind_what_moves_nothing(
    shape: tuple[int, ...], axes: tuple[int, ...], steps: list[tuple[int, ...]]
) -> None:
    """What a reshape does to indices must not hide which tile of shared memory is read."""

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        x = bb.emit(R.broadcast_to(bb.emit(R.permute_dims(x, axes)), [shape[axis] for axis in axes]))
        for step in steps[:-1]:
            x = bb.emit(R.reshape(x, step))
        return R.reshape(x, steps[-1])

    x = drawn(*shape)
    mod = graph(build, [(shape, "float32")])
    model = EmulatedModel(mod, TARGET)
    assert "cuda.transpose" in model.rules.values()
    (found,) = model(x)
    assert not model.faults
    np.testing.assert_array_equal(found, x.transpose(axes).reshape(steps[-1]))
    assert tvm.compile(lower(mod, TARGET, PipelineOptions())[0], TARGET) is not None
