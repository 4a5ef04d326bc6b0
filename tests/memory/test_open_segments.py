"""Kernels of open extents that one function calls give the same, and leave little to the virtual machine."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from tests.shapes.dynamic_models import MODELS
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.memory.relax.open_segments import MOST_TENSORS
from tvm_ext.memory.relax.segment_body import Body
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.options import PipelineOptions


@I.ir_module
class Views:
    """Views are returned or used inside only, an intermediate tensor is returned, too, and a result is an input."""

    @R.function
    def main(x: R.Tensor(("n", "m", 4), "float32"), w: R.Tensor((4, 5), "float32")):  # type: ignore
        n, m = T.int64(), T.int64()  # type: ignore
        with R.dataflow():
            a = R.exp(x)
            b = R.matmul(R.reshape(a, (n * m, 4)), w)
            c = R.reshape(b, (n, m * 5))
            d = R.sum(c, axis=[0])
            e = R.matmul(R.permute_dims(a, [0, 2, 1]), R.permute_dims(R.reshape(c, (n, m, 5)), [0, 1, 2]))
            f = R.reshape(x, (m, n * 4))
            out = (c, d, e, a, f, x)
            R.output(out)
        return out


@I.ir_module
class Windows:
    """Extents that no run can have below ``n = 4``, where one of them divides by zero."""

    @R.function
    def main(x: R.Tensor(("n",), "float32"), w: R.Tensor((3, 5), "float32")):  # type: ignore
        n = T.int64()  # type: ignore
        with R.dataflow():
            a = R.broadcast_to(R.reshape(x, (1, n, 1)), (n // (n // 4), n, 3))
            b = R.matmul(R.exp(a), w)
            out = R.matmul(b, R.permute_dims(b, [0, 2, 1]))
            R.output(out)
        return out


@I.ir_module
class OtherExtents:
    """A tensor of which there is a view only has an extent that no kernel is told of."""

    @R.function
    def main(x: R.Tensor((8, "t", 4), "float32"), y: R.Tensor(("s", 4), "float32")):  # type: ignore
        s = T.int64()  # type: ignore
        with R.dataflow():
            view = R.reshape(y, (s, 2, 2))
            a = R.exp(x)
            b = R.matmul(a, R.permute_dims(a, [0, 2, 1]))
            c = R.matmul(R.exp(b), x)
            out = (R.sum(c, axis=[1]), view)
            R.output(out)
        return out


def views(sizes: tuple[int, int], seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    n, m = sizes
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((n, m, 4)).astype("float32"), rng.standard_normal((4, 5)).astype("float32")
    a = np.exp(x)
    c = (a.reshape(n * m, 4) @ w).reshape(n, m * 5)
    e = a.transpose(0, 2, 1) @ c.reshape(n, m, 5)
    return [x, w], [c, c.sum(0), e, a, x.reshape(m, n * 4), x]


def check(model: CompiledModel, sizes: tuple[int, int], seed: int = 0) -> None:
    given, expected = views(sizes, seed)
    for got, want in zip(model.run(given).values(), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(sizes))


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return tvm_ext.compile(Views)


def segments(mod: Any) -> list[dict[str, Any]]:
    found = [func.attrs for func in mod.functions.values() if isinstance(func, tirx.PrimFunc) and func.attrs]
    return [json.loads(str(attrs[SEGMENT_ATTRIBUTE])) for attrs in found if SEGMENT_ATTRIBUTE in attrs]


def lowered(mod: Any, **options: Any) -> Any:
    return lower(mod, native_target(), PipelineOptions(**options))[0]


def test_views_results_and_inputs(model: CompiledModel) -> None:
    for seed, sizes in enumerate([(1, 1), (3, 7), (2, 33), (17, 1), (0, 3), (3, 0), (31, 127), (1, 1)]):
        check(model, sizes, seed)


def test_little_is_left_to_the_virtual_machine() -> None:
    mod = lowered(Views)
    assert sum(found["calls"] for found in segments(mod)) >= 5
    calls: list[str] = []
    relax.analysis.post_order_visit(
        mod["main"], lambda node: calls.append(str(node.op)) if isinstance(node, relax.Call) else None
    )
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert len([call for call in calls if "segment" in call]) == len(segments(mod)) <= 2
    assert len(kernels) > 5
    assert not segments(lowered(Views, memory="stock"))
    assert not segments(lowered(relax.transform.BindSymbolicVars({"n": 2, "m": 3})(Views)))


def test_what_is_written_down_of_a_plan_holds() -> None:
    case = MODELS["attention_block"]()
    imported = import_model(case.model, dynamic=case.dynamic)
    plans = [row for row in segments(lowered(imported.mod)) if row.get("below")]
    assert plans
    for found in plans:
        above: dict[str, set[str]] = {}
        for name, lower_ones in found["below"].items():
            above[name] = set(lower_ones).union(*(above[other] for other in lower_ones))
        for name, (first, last) in found["intervals"].items():
            for other, (begin, end) in found["intervals"].items():
                if name != other and first <= end and begin <= last:
                    assert name in above[other] or other in above[name]
        assert max(found["ratios"]) <= 1.25


def test_offsets_do_not_grow_as_they_are_simplified() -> None:
    """Each stands above two others; written in full the last would be the maximum of thousands."""
    n = tirx.Var("n", "int64")
    below = {f"t{number}": [f"t{other}" for other in (number - 1, number - 2) if other >= 0] for number in range(20)}
    sizes = {name: n * (4 * number + 4) for number, name in enumerate(below)}
    plan = SimpleNamespace(below=below)
    function = Body({}, [], plan, sizes, [n], []).function()  # type: ignore[arg-type]
    simplified = tvm.tirx.transform.StmtSimplify()(tvm.IRModule({"main": function}))
    assert len(simplified["main"].script()) < 10_000


def test_a_loaded_model_computes_the_same(model: CompiledModel, tmp_path: Path) -> None:
    loaded = tvm_ext.load(model.save(tmp_path / "model"))
    for sizes in ((3, 7), (0, 1), (5, 5)):
        check(loaded, sizes)


def test_threads_have_workspaces_of_their_own(model: CompiledModel) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                check(model, (1 + (number * turn) % 13, 1 + turn), number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("n", [4, 7, 17, 64])
def test_extents_that_cannot_be(n: int) -> None:
    """The least of the sizes that memory is planned for divides by zero."""
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal(n).astype("float32"), rng.standard_normal((3, 5)).astype("float32")
    (found,) = tvm_ext.compile(Windows).run([x, w]).values()
    b = np.broadcast_to(np.exp(x)[None, :, None], (n // (n // 4), n, 3)) @ w
    np.testing.assert_allclose(found, b @ b.transpose(0, 2, 1), rtol=1e-4, atol=1e-4)


def test_a_view_of_what_no_kernel_reads() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.random(shape).astype("float32") for shape in ((8, 5, 4), (7, 4)))
    total, view = tvm_ext.compile(OtherExtents).run([x, y]).values()
    a = np.exp(x)
    np.testing.assert_allclose(total, (np.exp(a @ a.transpose(0, 2, 1)) @ x).sum(1), rtol=1e-4)
    np.testing.assert_array_equal(view, y.reshape(7, 2, 2))


def test_segments_are_given_a_limited_number_of_tensors() -> None:
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    inputs = [relax.Var(f"x{place}", relax.TensorType([n, 5], "float32")) for place in range(200)]
    with builder.function("main", inputs):
        with builder.dataflow():
            total = relax.const(np.float32(0))
            for value in inputs:
                total = builder.emit(relax.op.add(total, value))
            result = builder.emit_output(relax.op.nn.softmax(total))
        builder.emit_func_output(result)
    mod = builder.get()
    functions = [func for func in lowered(mod).functions.values() if SEGMENT_ATTRIBUTE in (func.attrs or {})]
    assert len(functions) > 1
    assert max(len(func.params) for func in functions) < MOST_TENSORS + 8, "with results and extents"
    values = [np.full((3, 5), place, "float32") for place in range(200)]
    (found,) = tvm_ext.compile(mod).run(values).values()
    np.testing.assert_allclose(found, np.full((3, 5), 0.2), rtol=1e-6)
