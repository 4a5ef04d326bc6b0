"""Slices of a convolution's channels by themselves: values by numpy, less memory, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.memory.relax.modules import lowered, results_of
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.memory.relax.sliced_convolutions import slice_convolutions, sliced_convolutions


def spectrum(channels: int, first: int, second: int) -> tvm.IRModule:
    """Make a convolution of which two ranges of channels are squared and added."""
    weight = np.random.default_rng(channels).standard_normal((channels, 1, 16)).astype("float32")
    x = relax.Var("x", relax.TensorType((1, 1, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv1d(x, relax.const(weight), strides=8))
            y = builder.emit(op.strided_slice(y, [0], [0], [1]))
            half = channels // 2
            a, b = (builder.emit(op.strided_slice(y, [1], [begin], [begin + half])) for begin in (first, second))
            squares = [builder.emit(op.multiply(part, part)) for part in (a, b)]
            result = builder.emit_output(op.sqrt(builder.emit(op.add(*squares))))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


@pytest.mark.parametrize("channels", [2, 34, 66, 258])
def test_halves_of_a_spectrum(channels: int) -> None:
    """Real and imaginary parts are convolutions of their own; the values are those of the whole."""
    mod = spectrum(channels, 0, channels // 2)
    assert len(sliced_convolutions(mod["main"])) == 2
    counts = iter((2, 1))
    tried = slice_convolutions(lambda _: next(counts))(mod)
    kept = [getattr(binding.value.op, "name", "") for binding in tried["main"].body.blocks[0].bindings]
    assert kept.count("relax.nn.conv1d") == 2
    assert "relax.strided_slice" not in kept
    value = np.random.default_rng(0).standard_normal((1, 1, 64)).astype("float32")
    weight = np.random.default_rng(channels).standard_normal((channels, 16)).astype("float32")
    frames = np.stack([value[0, 0, start : start + 16] for start in range(0, 49, 8)], axis=1).astype("float64")
    parts = (weight @ frames).reshape(2, channels // 2, -1)
    expected = np.sqrt((parts**2).sum(0))[None]
    np.testing.assert_allclose(results_of(lowered(tried), [value])[0], expected, rtol=1e-5, atol=1e-5)
    value[0, 0, 3] = np.nan
    found = results_of(lowered(tried), [value])[0]
    assert np.isnan(found[..., 0]).all()
    assert not np.isnan(found[..., 1:]).any()


def test_slices_that_overlap_stay() -> None:
    """A channel in two slices would be computed twice."""
    mod = spectrum(34, 0, 16)
    assert sliced_convolutions(mod["main"]) == {}


def test_where_it_helps() -> None:
    """The parts are taken where that lowers the peak, by default as in patches; a limit that leaves room does not."""
    mod = spectrum(258, 0, 129)
    value = np.random.default_rng(2).standard_normal((1, 1, 64)).astype("float32")
    whole, parts = lowered(mod, patches="off"), lowered(mod, patches="always")
    assert memory_decisions(lowered(mod))["main"]["sliced_convolutions"]
    note = memory_decisions(parts)["main"]["sliced_convolutions"]
    assert note["slices"] == 2
    assert note["after"] < note["before"]
    assert "sliced_convolutions" not in memory_decisions(whole)["main"]
    np.testing.assert_allclose(results_of(parts, [value])[0], results_of(whole, [value])[0], rtol=1e-5, atol=1e-6)
    roomy = lowered(mod, memory="arena", memory_limit=10**6)
    assert "sliced_convolutions" not in memory_decisions(roomy)["main"]
    kept = slice_convolutions(lambda _: 1)(mod)
    assert [binding.value.op.name for binding in kept["main"].body.blocks[0].bindings].count("relax.nn.conv1d") == 1


def test_what_is_used_whole_stays() -> None:
    """A convolution that something else reads, and one of groups, are left alone."""
    weight = relax.const(np.ones((8, 1, 3), "float32"))
    for groups in (1, 2):
        x = relax.Var("x", relax.TensorType((1, groups, 9), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                y = builder.emit(op.nn.conv1d(x, weight, groups=groups))
                halves = [builder.emit(op.strided_slice(y, [1], [begin], [begin + 4])) for begin in (0, 4)]
                read = [builder.emit(op.nn.relu(y))] if groups == 1 else []
                result = builder.emit_output(relax.Tuple([*(builder.emit(op.exp(half)) for half in halves), *read]))
            builder.emit_func_output(result)
        assert sliced_convolutions(relax.transform.Normalize()(builder.get())["main"]) == {}
