"""float16 for RISC-V: compiled where the processor can convert it, refused elsewhere."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.compiler import compile as compile_model
from tvm_ext.errors import TargetError


def compiled(*features: str, dtype: str = "float16") -> object:
    module = graph(lambda builder, x: builder.emit(relax.op.nn.relu(relax.op.astype(x, "float32"))), [((3, 33), dtype)])
    mattr = ["+m", "+a", "+f", "+d", "+c", *features]
    config = {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "generic-rv64", "mattr": mattr, "num-cores": 2}
    return compile_model(module, tvm.target.Target(config))


@pytest.mark.parametrize("features", [(), ("+v",)])
def test_refused_without_instructions(features: tuple[str, ...]) -> None:
    with pytest.raises(TargetError, match=r'computes with float16, .* add "\+zfhmin" to its mattr'):
        compiled(*features)


def test_compiled_with_them_and_without_half_precision() -> None:
    assert compiled("+v", "+zfhmin")
    assert compiled("+v", dtype="float64")
