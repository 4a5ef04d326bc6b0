"""Tensors that begin at no multiple of a vector."""

from __future__ import annotations

import pytest

from tests.processes import output_of

SOURCE = """
    import numpy as np
    import tvm, tvm_ffi
    from tvm import relax
    import tvm_ext
    from tests.schedules.kernels import graph

    def build(builder, x, w):
        return builder.emit(relax.op.nn.relu(relax.op.matmul(x, w)))

    module = graph(build, [((5, 33), "float32"), ((33, 65), "float32")])
    target = tvm.target.Target({{"kind": "llvm", "mcpu": "{level}", "num-cores": 2}})
    executable = tvm.compile(module, target, relax_pipeline=relax.get_pipeline("tvm_ext", memory="{memory}"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for shift in (0, 1, 3):
        inputs = []
        for shape in ((5, 33), (33, 65)):
            memory = np.random.default_rng(0).random(4000).astype("float32")
            inputs.append(memory[shift : shift + shape[0] * shape[1]].reshape(shape))
        result = machine["main"](*map(tvm_ffi.from_dlpack, inputs)).numpy()
        np.testing.assert_allclose(result, np.maximum(inputs[0] @ inputs[1], 0), rtol=1e-4)
    print("right")
"""


@pytest.mark.parametrize(("level", "memory"), [("x86-64-v2", "stock"), ("haswell", "arena")])
def test_inputs_begin_at_any_element(level: str, memory: str) -> None:
    assert output_of(SOURCE.format(level=level, memory=memory)) == "right"
