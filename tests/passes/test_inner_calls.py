"""Functions that are only called from within their module do not check what the calls prove."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.passes.inner_calls import unchecked_inner_calls


@I.ir_module
class Inner:
    @R.function(private=True)
    def known(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, "n"), "float32")) -> R.Tensor((2, "n"), "float32"):
        return R.multiply(y, R.sum(x))

    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, "n"), "float32")) -> R.Tensor((2, "n"), "float32"):
        cls = Inner
        z = cls.known(x, y)
        w = cls.known(x, z)
        return w


@I.ir_module
class Doubtful:
    @R.function(private=True)
    def inner(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        return R.add(x, x)

    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor(ndim=2, dtype="float32")) -> R.Tensor((2, 3), "float32"):
        cls = Doubtful
        z = cls.inner(x)
        w = cls.inner(y)
        return R.subtract(z, w)


@I.ir_module
class HandedOn:
    @R.function(private=True)
    def inner(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        return R.add(x, x)

    @R.function(pure=False)
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        cls = HandedOn
        y = cls.inner(x)
        z = R.call_packed("tests.never", (cls.inner, y), sinfo_args=[R.Tensor((2, 3), "float32")])
        return z


def _lowered(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower as TVM does, up to the names of functions."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
    ]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(mod)


def _checked(mod: tvm.IRModule, name: str) -> list[str]:
    """Name the parameters of a function that it checks."""
    calls = [binding.value for block in mod[name].body.blocks for binding in block.bindings]
    return [
        call.args[0].name
        for call in calls
        if isinstance(call, relax.Call)
        and isinstance(call.op, relax.ExternFunc)
        and call.op.global_symbol in ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")
        and call.args[0] in list(mod[name].params)
    ]


def test_what_calls_prove_is_not_checked() -> None:
    lowered = _lowered(Inner)
    assert _checked(lowered, "known") == ["x", "y", "x", "y"]
    unchecked = unchecked_inner_calls()(lowered)
    assert _checked(unchecked, "known") == ["y", "y"]  # of which the second reads ``n``
    assert _checked(unchecked, "main") == _checked(lowered, "main") == ["x", "y", "x", "y"]


def test_a_call_that_may_be_wrong_is_checked() -> None:
    lowered = _lowered(Doubtful)
    tvm.ir.assert_structural_equal(unchecked_inner_calls()(lowered), lowered)
    machine = relax.VirtualMachine(tvm.compile(Doubtful, "llvm", relax_pipeline="tvm_ext"), tvm.cpu())
    right, wrong = (tvm.runtime.tensor(np.ones(shape, "float32")) for shape in ((2, 3), (3, 2)))
    assert (machine["main"](right, right).numpy() == 0).all()
    with pytest.raises((ValueError, RuntimeError), match="inner"):
        machine["main"](right, wrong)


def test_a_function_that_is_handed_on_checks() -> None:
    lowered = _lowered(HandedOn)
    assert _checked(lowered, "inner") == ["x", "x"]
    tvm.ir.assert_structural_equal(unchecked_inner_calls()(lowered), lowered)
