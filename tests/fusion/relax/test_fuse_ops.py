"""What FuseOps would group, asked without changing the module, is what it does group."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tests.zoo import get
from tvm_ext.frontend import import_model
from tvm_ext.fusion.relax.fuse_ops import fuse_ops_groups

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
    fused = relax.transform.FuseOps()(mod)
    called = [getattr(binding.value, "op", None) for block in fused["main"].body.blocks for binding in block.bindings]
    functions = [fused[variable] for variable in called if isinstance(variable, tvm.ir.GlobalVar)]
    sizes = [
        sum(getattr(binding.value, "op", None) == CALL_TIR for block in func.body.blocks for binding in block.bindings)
        for func in functions
    ]
    assert sorted(map(len, groups)) == sorted(size for size in sizes if size > 1)
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    assert all(bindings[node].value.op.name == "relax.call_tir" for group in groups for node in group)
