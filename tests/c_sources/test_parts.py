"""Sources of models in strips, slices and groups, under sanitizers: no finding, and the values of the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_ext
from tests.c_sources.test_kernels import run_strictly
from tests.memory.relax.parted_nets import parted_net
from tests.zoo import get
from tvm_ext.frontend import import_model

CASES = [(3, "groups"), (4, "patches"), (6, "sliced_convolutions")]


@pytest.mark.parametrize(("seed", "way"), CASES, ids=[way for _, way in CASES])
def test_small_networks(tmp_path: Path, seed: int, way: str) -> None:
    mod = parted_net(seed)
    shape = tuple(map(int, mod["main"].params[0].ty.shape))
    value = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    value[0, 0, 3, 2] = np.inf
    written = tvm_ext.compile(mod, emit="c", patches="always")
    assert way in written.metadata["decisions"]["memory"]["main"]
    agree(tmp_path, written, tvm_ext.compile(mod, patches="always"), [value])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "patches"), [("silero_vad", "auto"), ("squeezenet", "auto"), ("minilm", "always")])
def test_zoo(tmp_path: Path, name: str, patches: str) -> None:
    entry = get(name)
    if reason := entry.missing():
        pytest.skip(reason)
    inputs = entry.inputs(0)
    imported = import_model(entry.onnx_model(), input_shapes={key: list(array.shape) for key, array in inputs.items()})
    written = tvm_ext.compile(imported, emit="c", patches=patches)
    given = [inputs[spec.name] for spec in written.inputs]
    agree(tmp_path, written, tvm_ext.compile(imported, patches=patches), given)


def agree(folder: Path, written: object, library: tvm_ext.CompiledModel, given: list[np.ndarray]) -> None:
    """Build and run sources strictly, and compare every output with the library's."""
    found = run_strictly(folder, written, given)
    expected = library.run({spec.name: array for spec, array in zip(library.inputs, given, strict=True)})
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        largest = np.nanmax(np.abs(array), where=np.isfinite(array), initial=1e-30)
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("memory", ["arena", "stock"])
def test_functions_that_are_called(tmp_path: Path, memory: str) -> None:
    """A function of a function, called twice, that gives two results."""
    builder = relax.BlockBuilder()

    def parameter(name: str) -> relax.Var:
        return relax.Var(name, relax.TensorType((4, 5), "float32"))

    p, q, x = parameter("p"), parameter("q"), parameter("x")
    with builder.function("inner", [p], private=True):
        builder.emit_func_output(builder.emit(relax.op.exp(relax.op.negative(p))))
    inner = next(variable for variable in builder.get().get_global_vars() if variable.name_hint == "inner")
    with builder.function("outer", [q], private=True):
        once = builder.emit(relax.Call(inner, [q]))
        twice = builder.emit(relax.Call(inner, [builder.emit(relax.op.nn.softmax(once))]))
        builder.emit_func_output(builder.emit(relax.Tuple([once, twice])))
    outer = next(variable for variable in builder.get().get_global_vars() if variable.name_hint == "outer")
    with builder.function("main", [x]):
        first = builder.emit(relax.Call(outer, [x]))
        second = builder.emit(relax.Call(outer, [builder.emit(relax.TupleGetItem(first, 1))]))
        parts = [builder.emit(relax.TupleGetItem(pair, at)) for pair in (first, second) for at in (0, 1)]
        total = builder.emit(relax.op.add(parts[0], relax.op.multiply(parts[1], parts[2])))
        builder.emit_func_output(builder.emit(relax.Tuple([total, parts[3]])))
    mod = builder.get()
    value = np.random.default_rng(0).standard_normal((4, 5)).astype("float32")
    agree(tmp_path, tvm_ext.compile(mod, emit="c", memory=memory), tvm_ext.compile(mod), [value])


def test_rows_of_three(tmp_path: Path) -> None:
    """Three rows are interleaved as vectors of 24 elements, which C does not have."""
    x = relax.Var("x", relax.TensorType((1, 3, 17), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.permute_dims(x, [0, 2, 1]))
        builder.emit_func_output(result)
    value = np.random.default_rng(0).standard_normal((1, 3, 17)).astype("float32")
    agree(tmp_path, tvm_ext.compile(builder.get(), emit="c"), tvm_ext.compile(builder.get()), [value])
