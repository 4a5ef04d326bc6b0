"""Small ONNX models with open dimensions, as exporters write them, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.shapes import dynamic_networks as networks
from tests.shapes import dynamic_operators as operators
from tests.shapes.dynamic_model import DynamicModel

MODELS: dict[str, Callable[[], DynamicModel]] = {
    "mlp": networks.mlp,
    "attention_block": networks.attention_block,
    "cache_attention": networks.cache_attention,
    "cnn_by_shape": networks.cnn_by_shape,
    "pyramid": networks.pyramid,
    "upsampling": networks.upsampling,
    "lstm": lambda: networks.recurrent("LSTM", 4),
    "gru": lambda: networks.recurrent("GRU", 3),
    "rnn": lambda: networks.recurrent("RNN", 1),
    "found_places": operators.found_places,
    "branch_by_size": operators.branch_by_size,
    "one_rate": operators.one_rate,
    "slices": operators.slices,
    "best_of": operators.best_of,
    "counted": operators.counted,
    "parts": operators.parts,
    "conformer": networks.conformer,
    "repeated": operators.repeated,
    "scanned": operators.scanned,
}
"""By name; ``limited_reshape`` and ``two_inputs`` have sizes that go together, and tests of their own."""
