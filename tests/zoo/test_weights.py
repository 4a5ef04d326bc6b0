"""Made-up weights: every kind of supplier is replaced, and signals keep their size."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.zoo.weights import fill_weights

MODEL = """
<ir_version: 8, opset_import: ["" : 13]>
net (float[1,64,8,8] x) => (float[1,32,8,8] y)
<float[32,64,3,3] declared, int64[1] shape = {32}, float[32] given = {FILL}>
{
  generated = ConstantOfShape (shape)
  h = Conv <pads = [1,1,1,1]> (x, declared, generated)
  y = BatchNormalization (h, given, generated, generated, given)
}
""".replace("FILL", ", ".join(["0.02"] * 32))


def test_every_weight_becomes_a_seeded_initialiser() -> None:
    model = onnx.parser.parse_model(MODEL)
    one, same, other = (fill_weights(model, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in one.graph.initializer}
    assert set(weights) == {"declared", "generated", "given"}
    assert [node.op_type for node in one.graph.node] == ["Conv", "BatchNormalization"]
    assert all(value.std() > 0 for value in weights.values())


def test_filters_have_the_variance_of_he_and_no_mean() -> None:
    filled = fill_weights(onnx.parser.parse_model(MODEL), 0)
    filters = next(numpy_helper.to_array(t) for t in filled.graph.initializer if t.name == "declared")
    np.testing.assert_allclose(filters.var(), 2 / (64 * 9), rtol=0.05)
    np.testing.assert_allclose(filters.mean(axis=(1, 2, 3)), 0, atol=1e-7)


def test_head_gain_scales_the_last_product() -> None:
    model = onnx.parser.parse_model(MODEL)
    plain, scaled = fill_weights(model, 0), fill_weights(model, 0, head_gain=3.0)
    filters = [
        next(numpy_helper.to_array(t) for t in m.graph.initializer if t.name == "declared") for m in (plain, scaled)
    ]
    np.testing.assert_allclose(filters[1], filters[0] * 3)
