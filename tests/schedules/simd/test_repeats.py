"""Rows that repeat a shorter one are divided into it, or into several of them."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.kernels import TARGETS, compile_graph, graph
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.kernel.blocks import top_blocks
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.repeats import repeated_rows


@pytest.mark.parametrize("target", ["native", "sse4"])
@pytest.mark.parametrize("width", [1, 3, 7, 8, 17, 31, 33])
@pytest.mark.parametrize("repeats", [(3, 4, 5), (1, 2, 7), (2, 1, 16), (1, 1, 100), (2, 3, 1)])
def test_tile(repeats: tuple[int, ...], width: int, target: str) -> None:
    x = np.random.default_rng(width).standard_normal((2, 3, width)).astype("float32")
    x[0, 0, 0], x[1, 2, -1] = np.nan, -0.0
    compiled = compile_graph(lambda _, v: relax.op.tile(v, repeats), [x], RULES, TARGETS[target])
    found = compiled(x)
    np.testing.assert_array_equal(found, np.tile(x, repeats))
    assert np.signbit(found[-1, -1, -1])


def test_what_is_behind_and_beside_it() -> None:
    generator = np.random.default_rng(0)
    x, z = generator.standard_normal((5, 33)).astype("float32"), generator.standard_normal((10, 231)).astype("float32")
    compiled = compile_graph(
        lambda builder, v, w: relax.op.nn.relu(builder.emit(relax.op.add(builder.emit(relax.op.tile(v, (2, 7))), w))),
        [x, z],
        RULES,
    )
    assert len(compiled.kernels) == 1
    np.testing.assert_array_equal(compiled(x, z), np.maximum(np.tile(x, (2, 7)) + z, 0))


def test_bytes() -> None:
    x = np.arange(5 * 37, dtype="int8").reshape(5, 37)
    compiled = compile_graph(lambda _, v: relax.op.tile(v, (3, 9)), [x], RULES)
    np.testing.assert_array_equal(compiled(x), np.tile(x, (3, 9)))


@pytest.mark.parametrize(
    ("width", "copies", "piece"),
    [(33, 5, 33), (8, 6, 8), (3, 100, 60), (3, 16, 48), (3, 97, 0), (33, 4, 0), (1, 64, 0)],
)
def test_pieces(width: int, copies: int, piece: int) -> None:
    module = graph(lambda _, v: relax.op.tile(v, (2, copies)), [((4, width), "float32")])
    kernel = relax.transform.LegalizeOps()(module)["tile"]
    schedule = new_schedule(kernel)
    (block,) = top_blocks(schedule)
    assert repeated_rows(schedule.get(block), 8) == piece
