"""Modules that the pipeline lowered may be lowered again, as TVM's own backend of ``torch.compile`` does."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tests.processes import output_of
from tvm_ext.passes.keep_returned import keep_returned


@I.ir_module
class Pair:
    @R.function
    def main(x: R.Tensor(("n", 3), "float32")) -> R.Tuple(R.Tensor(("n", 3), "float32"), R.Tensor(("n", 3), "float32")):
        with R.dataflow():
            y = R.add(x, R.const(1, "float32"))
            z = R.multiply(y, y)
            result = (y, z)
            R.output(result)
        return result


def test_nothing_that_is_returned_is_killed() -> None:
    with tvm.target.Target("llvm"):
        lowered = relax.get_pipeline("tvm_ext")(Pair)
    text = lowered["main"].script()
    assert "kill_object(storage" in text
    assert "kill_object(alloc" not in text
    assert "[0]" not in text.partition("return")[0].rpartition("alloc_tensor")[2]
    tvm.ir.assert_structural_equal(keep_returned()(lowered), lowered)


def test_lowered_twice() -> None:
    """In a process of its own: what this guards against is a segmentation fault."""
    source = """
        import numpy as np, tvm
        from tvm import relax
        from tests.passes.test_keep_returned import Pair
        target = tvm.target.Target("llvm")
        with target:
            lowered = relax.get_pipeline("tvm_ext")(Pair)
        machine = relax.VirtualMachine(relax.build(lowered, target), tvm.cpu())
        y, z = machine["main"](tvm.runtime.tensor(np.full((2, 3), 3, "float32")))
        print(y.numpy().sum(), z.numpy().sum())
    """
    assert output_of(source) == "24.0 96.0"


@pytest.mark.torch
@pytest.mark.parametrize("dynamic", [False, True])
def test_as_a_pipeline_of_relax_dynamo(dynamic: bool) -> None:
    pytest.importorskip("torch")
    source = f"""
        import torch
        from tvm import relax
        from tvm.relax.frontend.torch import relax_dynamo
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        run = torch.compile(net, backend=relax_dynamo(pipeline=relax.get_pipeline("tvm_ext")), dynamic={dynamic})
        with torch.no_grad():
            for rows in (2, 5, 7) if {dynamic} else (2,):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(run(x), net(x))
        print("done")
    """
    assert output_of(source) == "done"


def test_results_stay_as_they_are() -> None:
    executable = tvm.compile(Pair, "llvm", relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for rows in (0, 1, 3, 17):
        x = np.arange(rows * 3, dtype="float32").reshape(rows, 3)
        y, z = machine["main"](tvm.runtime.tensor(x))
        np.testing.assert_array_equal(y.numpy(), x + 1)
        np.testing.assert_array_equal(z.numpy(), (x + 1) ** 2)


@I.ir_module
class Nested:
    @R.function
    def main(
        p: R.Tuple(R.Tensor(("n", 3), "float32"), R.Tensor(("n", 3), "float32")), q: R.Tensor(("n", 3), "float32")
    ):
        with R.dataflow():
            first, second = p[0], p[1]
            result = (R.add(first, q), (second, (R.nn.relu(first), p), R.multiply(second, q)))
            R.output(result)
        return result


def test_tuples_inside_of_what_is_returned() -> None:
    """A field of a field was left without what it is a field of."""
    target = tvm.target.Target("llvm")
    with target:
        lowered = relax.get_pipeline("tvm_ext")(Nested)
    text = lowered["main"].script()
    assert "kill_object(alloc" not in text
    tvm.ir.assert_structural_equal(keep_returned()(lowered), lowered)
    for module in (Nested, lowered):
        machine = relax.VirtualMachine(tvm.compile(module, target, relax_pipeline="tvm_ext"), tvm.cpu())
        first, second, q = (np.full((2, 3), number, "float32") for number in (-1, 2, 3))
        given = [tvm.runtime.tensor(array) for array in (first, second, q)]
        total, (kept, (positive, pair), product) = machine["main"](given[:2], given[2])
        for found, expected in ((total, 2), (kept, 2), (positive, 0), (pair[0], -1), (pair[1], 2), (product, 6)):
            np.testing.assert_array_equal(found.numpy(), np.full((2, 3), expected, "float32"))
