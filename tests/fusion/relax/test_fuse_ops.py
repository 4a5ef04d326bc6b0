"""What FuseOps would group, asked without changing the module, is what it does group; no group reads many tensors."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.zoo import get
from tvm_ext.frontend import import_model
from tvm_ext.fusion.relax.fuse_ops import MOST_OPERANDS, OPERANDS, fuse_ops, fuse_ops_groups

LOWER = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.CanonicalizeBindings(),
    ]
)
CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_cnn", "tiny_cell", "tiny_transformer"])
def test_groups(name: str) -> None:
    mod = LOWER(import_model(get(name).onnx_path()).mod)
    before = mod.script()
    groups = fuse_ops_groups(mod, mod["main"])
    assert mod.script() == before
    assert sorted(map(len, groups)) == _sizes(relax.transform.FuseOps()(mod))
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    assert all(bindings[node].value.op.name == "relax.call_tir" for group in groups for node in group)


def _sizes(fused: tvm.IRModule) -> list[int]:
    """List how many kernels the groups have that ``main`` calls, in order of size."""
    called = [getattr(binding.value, "op", None) for block in fused["main"].body.blocks for binding in block.bindings]
    functions = [fused[variable] for variable in called if isinstance(variable, tvm.ir.GlobalVar)]
    sizes = [
        sum(getattr(binding.value, "op", None) == CALL_TIR for block in func.body.blocks for binding in block.bindings)
        for func in functions
    ]
    return sorted(size for size in sizes if size > 1)


def _sum(count: int, every: int = 1) -> tvm.IRModule:
    """``y = x0 + x1 + ...``, of ``count`` inputs; of several terms each, added first, where ``every`` says so."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{place}", relax.TensorType((3, 5), "float32")) for place in range(count)]
    with builder.function("main", inputs):
        with builder.dataflow():
            terms = [inputs[place : place + every] for place in range(0, count, every)]
            total = relax.const(np.float32(0))
            for term in terms:
                value = term[0]
                for other in term[1:]:
                    value = builder.emit(relax.op.add(value, other))
                total = builder.emit(relax.op.add(total, value))
            result = builder.emit_output(relax.op.nn.relu(total))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
@pytest.mark.parametrize(("count", "every"), [(150, 1), (150, 3), (400, 7)])
def test_sums_of_many_tensors(count: int, every: int, fuse: str) -> None:
    compiled = tvm_ext.compile(_sum(count, every), fuse=fuse)
    random = np.random.default_rng(0)
    inputs = [random.integers(-9, 9, (3, 5)).astype("float32") for _ in range(count)]
    (result,) = compiled.run(inputs).values()
    np.testing.assert_array_equal(result, np.maximum(sum(inputs), 0))


@pytest.mark.parametrize(("count", "every"), [(65, 1), (150, 1), (150, 3), (400, 7), (700, 1)])
def test_no_group_reads_many_tensors(count: int, every: int) -> None:
    mod = LOWER(_sum(count, every))
    fused = fuse_ops()(mod)
    groups = [func for _, func in fused.functions_items() if "Primitive" in (func.attrs or {})]
    assert groups
    assert max(len(group.params) for group in groups) <= MOST_OPERANDS
    # Not many more than have to be: each but the last reads nearly as many as parts may, and gives one tensor.
    assert len(groups) <= -(-count // (OPERANDS - every))
    assert sorted(map(len, fuse_ops_groups(mod, mod["main"]))) == _sizes(fused)


def test_what_reads_few_tensors_stays_whole() -> None:
    mod = LOWER(_sum(MOST_OPERANDS - 1))
    fused = fuse_ops()(mod)
    tvm.ir.assert_structural_equal(fused, relax.transform.FuseOps()(mod))
    assert sum("Primitive" in (func.attrs or {}) for _, func in fused.functions_items()) == 1


@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
def test_tensor_that_a_cast_reads_beside_a_kernel(fuse: str) -> None:
    rows, columns = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 6), "float32"))
    y = relax.Var("y", relax.TensorType((columns, 6), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            both = builder.emit(relax.op.nn.relu(x))
            alike = builder.match_cast(both, relax.TensorType((columns, 6), "float32"))
            sums = builder.emit(relax.op.sum(relax.op.multiply(alike, y), axis=1, keepdims=True))
            plain = builder.match_cast(sums, relax.TensorType((rows, 1), "float32"))
            result = builder.emit_output(relax.op.add(both, plain))
        builder.emit_func_output(result)
    compiled = tvm_ext.compile(builder.get(), fuse=fuse)
    random = np.random.default_rng(0)
    first, second = (random.standard_normal((5, 6)).astype("float32") for _ in range(2))
    (given,) = compiled.run({"x": first, "y": second}).values()
    relu = np.maximum(first, 0)
    np.testing.assert_allclose(given, relu + (relu * second).sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
