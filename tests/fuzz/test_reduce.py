"""Failing models are made small, and keep failing in the same way."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz.options import Options
from scripts.fuzz.reduce import reduce
from scripts.fuzz.seeds import Drawn
from scripts.fuzz.trial import Outcome

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,6,9,31] x, float[31] y) => (float[1,8,9,31] z, float[1,6,9,31] w) <float[8,6,1,1] k = {%s}>
{ a = Add(x, y) b = Sigmoid(a) c = Tanh(b) d = Conv(c, k) z = Exp(d) w = Neg(b) }"""


def drawn() -> Drawn:
    generator = np.random.default_rng(0)
    weights = ",".join(str(round(float(value), 3)) for value in generator.standard_normal(48))
    feeds = {"x": generator.standard_normal((1, 6, 9, 31)), "y": generator.standard_normal(31)}
    options = Options(memory="optimal", fuse="mapping-type", level="haswell")
    model = onnx.parser.parse_model(TEXT % weights)
    return Drawn(model.SerializeToString(), {name: array.astype("float32") for name, array in feeds.items()}, options)


def broken_tanh(trial: Drawn) -> Outcome:
    """As if Tanh were wrong with one memory option, on more than two columns."""
    nodes = onnx.ModelProto.FromString(trial.model).graph.node
    has_tanh = any(node.op_type == "Tanh" for node in nodes)
    wide = any(array.shape[-1:] > (2,) for array in trial.feeds.values())
    return Outcome("wrong" if has_tanh and wide and trial.options.memory == "optimal" else "ok")


def test_nodes_then_shapes_then_options() -> None:
    small = reduce(drawn(), broken_tanh)
    (node,) = small.model.graph.node
    assert node.op_type == "Tanh"
    assert small.outcome.kind == "wrong"
    (feed,) = small.trial.feeds.values()
    assert feed.size <= 4
    assert small.trial.options == Options(memory="optimal")


def test_what_does_not_fail_stays() -> None:
    trial = drawn()
    assert reduce(trial, lambda smaller: Outcome("ok")).trial == trial
