"""What products in mixed precision read is converted once, and not at all where it has 16 bits already."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.passes.mixed_precision import mixed_precision

op = relax.op


def build(bb: relax.BlockBuilder, x: relax.Var, v: relax.Var, w: relax.Var) -> relax.Expr:
    first, second = bb.emit(op.matmul(x, w)), bb.emit(op.matmul(x, v))
    wide = bb.emit(op.astype(bb.emit(op.astype(bb.emit(op.add(first, second)), "float16")), "float32"))
    return op.matmul(bb.emit(op.reshape(wide, (34, 8))), bb.emit(op.reshape(bb.emit(op.nn.relu(first)), (8, 34))))


@pytest.mark.parametrize("dataflow", [True, False])
def test_conversions(dataflow: bool) -> None:
    mod = graph(build, [((17, 12), "float32"), ((12, 16), "float32"), ((12, 16), "float32")])
    if not dataflow:
        mod = relax.transform.ToNonDataflow()(mod)
    after = relax.transform.DeadCodeElimination()(mixed_precision("float16")(mod))
    relax.analysis.well_formed(after)
    # x, w, v, the sum and the right factor of the last product; the sum is not made float32 any more.
    assert after["main"].script().count("R.astype") == 5
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape).astype("float32") for shape in ((17, 12), (12, 16), (12, 16))]
    first, second = (run(it, given) for it in (mod, after))
    np.testing.assert_allclose(second, first, rtol=0, atol=5e-3 * np.abs(first).max())


def test_what_another_block_converted_is_not_seen() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            wide = bb.emit_output(op.astype(bb.emit(op.astype(x, "float16")), "float32"))
            same = bb.emit_output(op.matmul(x, x))
        with bb.dataflow():
            found = bb.emit_output(op.matmul(bb.emit(op.matmul(wide, x)), same))
        bb.emit_func_output(found)
    after = mixed_precision("float16")(bb.get())
    relax.analysis.well_formed(after)
    given = [np.random.default_rng(1).standard_normal((4, 4)).astype("float32")]
    np.testing.assert_allclose(run(after, given), run(bb.get(), given), rtol=2e-2, atol=2e-2)


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


@pytest.mark.parametrize(
    ("dtype", "largest", "expected"),
    [("float16", 7e4, "float32"), ("float16", 6e4, "float16"), ("bfloat16", 7e4, "bfloat16")],
)
def test_weights_beyond_the_range_stay_as_they_are(dtype: str, largest: float, expected: str) -> None:
    """All results would be infinite, or NaN."""
    weight = np.full((7, 3), largest, "float32")
    weight[0, 0] = np.inf
    mod = mixed_precision(dtype)(graph(lambda _, x: op.matmul(x, relax.const(weight)), [((5, 7), "float32")]))
    products: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and expr.op.name == "relax.matmul":
            products.append(str(expr.args[1].ty.dtype))

    relax.analysis.post_order_visit(mod["main"].body, visit)
    assert products == [expected]
