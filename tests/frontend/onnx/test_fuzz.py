"""Damaged files through the whole import: an error with one sentence, or a model; never a traceback, crash or hang."""

from __future__ import annotations

import functools

import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.zoo import get
from tvm_ext.errors import TvmExtError
from tvm_ext.frontend import import_model

MODELS = ("tiny_cnn", "tiny_mlp", "tiny_lstm", "tiny_transformer")

# Sizes and counts at which arithmetic overflows, memory ends, or loops do not.
EXTREMES = (0, -1, 1, 2, 3, 65536, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63))

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
thorough = settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@functools.cache
def content(name: str) -> bytes:
    """The bytes of a sound file."""
    return get(name).onnx_model().SerializeToString()


@functools.cache
def structure(name: str) -> tuple[int, ...]:
    """Positions outside the weights, where damage does more than change a number."""
    data = content(name)
    inside: set[int] = set()
    for tensor in get(name).onnx_model().graph.initializer:
        start = data.find(tensor.raw_data) if len(tensor.raw_data) > 8 else -1
        if start >= 0:
            inside.update(range(start, start + len(tensor.raw_data)))
    return tuple(position for position in range(len(data)) if position not in inside)


def survives(data: bytes | onnx.ModelProto) -> None:
    try:
        imported = import_model(data)
    except TvmExtError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert "Traceback" not in message
    else:
        assert imported.outputs


names = st.sampled_from(MODELS)


def check_flips(name: str, positions: list[float], bits: list[int]) -> None:
    data = bytearray(content(name))
    where = structure(name)
    for position, bit in zip(positions, bits, strict=False):
        data[where[int(position * len(where))]] ^= 1 << bit
    survives(bytes(data))


fractions = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6)
bits = st.lists(st.integers(0, 7), min_size=6, max_size=6)


@quick
@given(names, fractions, bits)
def test_flipped_bits(name: str, positions: list[float], bits: list[int]) -> None:
    check_flips(name, positions, bits)


@pytest.mark.slow
@thorough
@given(names, fractions, bits)
def test_flipped_bits_thoroughly(name: str, positions: list[float], bits: list[int]) -> None:
    check_flips(name, positions, bits)


@quick
@given(names, st.floats(0, 1, exclude_max=True))
def test_truncated(name: str, fraction: float) -> None:
    data = content(name)
    survives(data[: int(fraction * len(data))])


@quick
@given(names, st.floats(0, 1), st.binary(min_size=1, max_size=20))
def test_inserted_bytes(name: str, fraction: float, added: bytes) -> None:
    data = content(name)
    position = int(fraction * len(data))
    survives(data[:position] + added + data[position:])


@quick
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    assume(not data.startswith(b"\x08\x08:"))
    survives(data)


def check_numbers(name: str, data: st.DataObject) -> None:
    """Structurally sound, but with numbers in it that no exporter writes."""
    model = onnx.ModelProto.FromString(content(name))
    for _ in range(data.draw(st.integers(1, 3))):
        value = data.draw(st.sampled_from(EXTREMES))
        nodes = [node for node in model.graph.node if any(item.ints or item.HasField("i") for item in node.attribute)]
        if data.draw(st.booleans()) and nodes:
            node = data.draw(st.sampled_from(nodes))
            attribute = data.draw(st.sampled_from([item for item in node.attribute if item.ints or item.HasField("i")]))
            if attribute.ints:
                attribute.ints[data.draw(st.integers(0, len(attribute.ints) - 1))] = value
            else:
                attribute.i = value
        else:
            dims = model.graph.input[0].type.tensor_type.shape.dim
            dims[data.draw(st.integers(0, len(dims) - 1))].dim_value = value
    survives(model)


@quick
@given(names, st.data())
def test_senseless_numbers(name: str, data: st.DataObject) -> None:
    check_numbers(name, data)


@pytest.mark.slow
@thorough
@given(names, st.data())
def test_senseless_numbers_thoroughly(name: str, data: st.DataObject) -> None:
    check_numbers(name, data)
