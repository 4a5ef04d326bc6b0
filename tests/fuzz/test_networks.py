"""Networks of the usual blocks: shapes are followed rightly, forms are what they say, and a slice of them is right."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz import networks, reference
from scripts.fuzz.forms import FORMS, in_form
from scripts.fuzz.image_blocks import ANY_RANK, BLOCKS
from scripts.fuzz.layers import Layers, Value
from scripts.fuzz.networks import draw_network
from scripts.fuzz.seeds import DRAWS
from scripts.fuzz.token_blocks import BLOCKS as TOKEN_BLOCKS
from scripts.fuzz.trial import MOST_OPEN, try_model

SHAPES = (
    *((block, (2, 12, 8, 10)) for block in BLOCKS),
    *((block, (1, 7, 5, 9)) for block in BLOCKS),
    *((block, shape) for block in ANY_RANK for shape in ((2, 12, 17), (1, 3, 4, 5, 6))),
    *((block, shape) for block in TOKEN_BLOCKS for shape in ((2, 7, 12), (1, 1, 31))),
)


def test_every_block_has_the_shape_that_it_says() -> None:
    for number, (block, shape) in enumerate(dict.fromkeys(SHAPES)):
        writer = Layers(17 if number % 2 else 13, np.random.default_rng(number))
        x = Value("x", shape)
        result = block(writer, x)
        if result is x:  # a block for other shapes
            continue
        model = networks.model_of(writer, [x], [result])
        (found,) = reference.run(model, {"x": np.zeros(shape, "float32")})
        assert found.shape == result.shape, (block.__name__, shape)


def test_forms_are_what_they_say() -> None:
    writer = Layers(17, np.random.default_rng(0))
    x = Value("x", (2, 3, 8, 8))
    flat = writer.reshape(writer.average(writer.activation(writer.conv(x, 8, 3))), 2, 8)
    model = networks.model_of(writer, [x], [writer.dense(flat, 5)])
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype("float32")}
    needed = {"qdq": "QuantizeLinear", "qoperator": "QLinearConv", "dynamic": "DynamicQuantizeLinear"}
    for form in dict.fromkeys(FORMS):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        made = in_form(form, copy, feeds, np.random.default_rng(2))
        operators = Counter(node.op_type for node in made.graph.node)
        assert form not in needed or operators[needed[form]]
        first = made.graph.input[0].type.tensor_type.shape.dim[0]
        assert (first.dim_param == "batch") == (form == "open")
        (found,) = reference.run(made, {"x": feeds["x"][:1]} if form == "open" else feeds)
        assert found.shape == ((1, 5) if form == "open" else (2, 5))


@pytest.mark.parametrize("shape", [(5, 24, 2, 9, 9), (5, 1, 2, 3000), (1, 200, 2, 2), (2, 16, 40, 40)])
def test_large_values_are_made_smaller(shape: tuple[int, ...]) -> None:
    """A side of two was pooled no more, and 24 channels became 24 for ever."""
    writer = Layers(17, np.random.default_rng(0))
    found = networks._smaller(writer, Value("x", shape), 4000)
    assert found.channels <= 160
    assert np.prod(found.shape) <= 4000 or found.channels == 1


def test_a_seed_has_one_network() -> None:
    (model, feeds), (again, same) = (draw_network(np.random.default_rng((7, 1))) for _ in range(2))
    assert model == again
    assert all(np.array_equal(feeds[name], same[name]) for name in feeds)
    assert all(array.shape[0] <= MOST_OPEN for array in feeds.values())


@pytest.mark.parametrize("seed", range(24))
def test_agrees_with_onnxruntime(seed: int) -> None:
    drawn = DRAWS["networks"](seed)
    outcome = try_model(onnx.ModelProto.FromString(drawn.model), drawn.feeds, drawn.options)
    assert outcome.kind == "ok", f"{outcome.kind}: {outcome.detail} ({drawn.options.spelled()})"
