"""Writing into a slice: numpy's values, without TVM's warning, at all bounds and steps; scattering truth values."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_ext.backends.cpu.target import native_target

SIZES = (1, 3, 7, 17)
CASES = [
    (size, begin, end, step)
    for size in SIZES
    for begin, end, step in [(0, size, 1), (1, size, 1), (0, size - 1, 1), (2, 5, 1), (1, size, 3), (0, size, 2)]
    if begin < end <= size
]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_equals_numpy(axis: int, capfd: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    tensors, expected = [], []
    with builder.function("main"):
        parameters, results = [], []
        for number, (size, begin, end, step) in enumerate(CASES):
            shape = [2, 2, 2]
            shape[axis] = size
            where = [slice(None)] * 3
            where[axis] = slice(begin, end, step)
            data = generator.standard_normal(shape).astype("float32")
            part = generator.standard_normal(data[tuple(where)].shape).astype("float32")
            x = relax.Var(f"x{number}", relax.TensorType(data.shape, "float32"))
            y = relax.Var(f"y{number}", relax.TensorType(part.shape, "float32"))
            parameters += [x, y]
            tensors += [data.copy(), part]
            bounds = (relax.prim_value(bound) for bound in (begin, end, step))
            results.append(builder.emit(relax.op.slice_scatter(x, y, *bounds, axis=axis)))
            data[tuple(where)] = part
            expected.append(data)
        builder.emit_func_output(relax.Tuple(results), parameters)
    executable = tvm.compile(builder.get(), native_target(), relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for found, wanted in zip(machine["main"](*map(tvm.runtime.tensor, tensors)), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert "segfaults" not in capfd.readouterr().err


@pytest.mark.parametrize("by_axis", [True, False])
@pytest.mark.parametrize("reduction", ["update", "add", "mul", "max", "min"])
def test_scattered_truth_values(reduction: str, by_axis: bool) -> None:
    generator = np.random.default_rng(1)
    data, updates = generator.random((4, 3)) < 0.5, generator.random((3, 3)) < 0.5
    rows = [2, 0, 3] if reduction == "update" else [2, 0, 2]
    index = np.array([[row] * 3 for row in rows] if by_axis else [[row] for row in rows])
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(array.shape, "bool")) for name, array in (("x", data), ("y", updates)))
    with builder.function("main", [x, y]):
        places = relax.const(index, "int64")
        by = (relax.op.scatter_elements, (x, places, y, 0)) if by_axis else (relax.op.scatter_nd, (x, places, y))
        nothing = relax.op.scatter_elements(x, relax.const(index[:0, :0], "int64"), relax.const(updates[:0, :0]), 0)
        builder.emit_func_output(relax.Tuple([builder.emit(by[0](*by[1], reduction)), builder.emit(nothing)]))
    combine = {"update": lambda a, b: b, "add": np.logical_or, "max": np.logical_or}.get(reduction, np.logical_and)
    expected = data.copy()
    for row, update in zip(rows, updates, strict=True):
        expected[row] = combine(expected[row], update)
    executable = tvm.compile(builder.get(), native_target(), relax_pipeline="tvm_ext")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, (data, updates)))
    np.testing.assert_array_equal(found[0].numpy(), expected)
    np.testing.assert_array_equal(found[1].numpy(), data)
