"""Functions whose variables share names: layers, calibration, borders and scales go by the variables themselves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.vta.model.test_offload import COSTS, MODELS, Emitter, forced_offload, run
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.calibrate import ObservedModel, Substitution
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.quantized_model import remove_quantization
from tvm_ext.backends.vta.model.relax_layers import bindings_of, identifiers, read_graph
from tvm_ext.frontend import import_model


def renamed(mod: tvm.IRModule, *names: str) -> tvm.IRModule:
    """The same ``main`` with these names for its variables in turn, parameters included."""
    main, turn = mod["main"], itertools.cycle(names)
    values: dict[relax.Var, relax.Expr] = {p: relax.Var(next(turn), p.ty) for p in main.params}
    substitution = Substitution(values)
    bindings = []
    for binding in bindings_of(main):
        value = substitution.visit_expr(binding.value)
        values[binding.var] = type(binding.var)(next(turn), binding.var.ty)
        bindings.append(relax.VarBinding(values[binding.var], value))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], substitution.visit_expr(main.body.body))
    changed = tvm.IRModule(dict(mod.functions))
    parameters = [values[p] for p in main.params]
    function = relax.Function(parameters, body, main.ret_ty, attrs=main.attrs)
    changed.update_func(mod.get_global_var("main"), function)
    return changed


def hard_swishes() -> onnx.ModelProto:
    """Two convolutions with batch norm and HardSwish, as exporters write them."""
    rng = np.random.default_rng(0)
    nodes, constants, value = [], [], "image"
    for at in range(2):
        weights = rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
        constants.append(numpy_helper.from_array(weights, f"w{at}"))
        statistics = [f"{part}{at}" for part in ("scale", "shift", "mean", "variance")]
        for part in statistics:
            constants.append(numpy_helper.from_array(rng.uniform(0.5, 1.5, 16).astype(np.float32), part))
        nodes += [
            helper.make_node("Conv", [value, f"w{at}"], [f"conv{at}"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"conv{at}", *statistics], [f"normal{at}"]),
            helper.make_node("HardSwish", [f"normal{at}"], [f"swish{at}"]),
        ]
        value = f"swish{at}"
    image, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 6, 6]) for name in ("image", value))
    graph = helper.make_graph(nodes, "g", [image], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def names_of(mod: tvm.IRModule) -> list[str]:
    return [binding.var.name for binding in bindings_of(mod["main"])]


def test_identifiers_differ_and_stay() -> None:
    mod = renamed(Emitter().module(*MODELS["pooled"]), "same name")
    assert set(names_of(mod)) == {"same name"}
    found = identifiers(mod["main"])
    assert len(set(found.values())) == len(found) == len(bindings_of(mod["main"])) + 1
    assert found == identifiers(mod["main"])
    assert all(name.isidentifier() for name in found.values())


def test_identifiers_do_not_meet_names() -> None:
    """A name that looks like one made for another variable is made different as well."""
    mod = Emitter().module((1, 3, 4, 4), lambda e, x: e.relu(e.relu(x)))
    found = identifiers(renamed(mod, "a_1", "a", "a", "a!")["main"])
    assert list(found.values()) == ["a_1", "a", "a_2", "a_"]


@pytest.mark.parametrize(
    "name", ["pooled", *(pytest.param(name, marks=pytest.mark.slow) for name in ("residual", "regions", "decoder"))]
)
def test_one_name_for_all(name: str) -> None:
    """Layers, regions, integers and results are those of the model whose variables have names of their own."""
    shape, body = MODELS[name]
    mod = Emitter().module(shape, body)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = forced_offload(mod, "sim", x)
    same = renamed(mod, "x")
    layers = read_graph(prepare(same)[0]["main"], 1).layers
    assert [layer.operator for layer in layers] == [layer.operator for layer in expected.graph.layers]
    found = offload(same, load_config("sim"), COSTS, {"x": x}, forced={layer.name: "vta" for layer in layers})
    assert [len(region) for region in found.partition.regions] == [len(r) for r in expected.partition.regions]
    assert [layer.shift for layer in found.network.layers] == [layer.shift for layer in expected.network.layers]
    for first, second in zip(run(found.mod, x), run(expected.mod, x), strict=True):
        np.testing.assert_array_equal(first, second)


def test_batch_norm_and_hard_swish_twice() -> None:
    """Folding batch norms can leave two variables of one name; every layer is decided about, once."""
    mod = renamed(import_model(hard_swishes()).mod, "lv", "lv1")
    names = names_of(prepare(mod)[0])
    assert len(set(names)) < len(names)
    x = np.random.default_rng(0).standard_normal((1, 16, 6, 6)).astype(np.float32)
    layers = read_graph(prepare(mod)[0]["main"], 1).layers
    model = offload(mod, load_config("sim"), COSTS, {"lv": x}, forced={layer.name: "vta" for layer in layers})
    assert sorted(decision.layer for decision in model.partition.decisions) == sorted(layer.name for layer in layers)
    assert len(layers) >= 2
    (floats,), _ = model.observed.run({"lv": x})
    (found,) = run(model.mod, x)
    assert np.square(found - floats).mean() < 0.01 * np.square(floats).mean()


def test_observed_values_are_of_the_variable_asked_for() -> None:
    mod = renamed(Emitter().module((1, 3, 4, 4), lambda e, x: e.relu(e.emit(relax.op.negative(x)))), "x")
    negative, positive = (binding.var for binding in bindings_of(mod["main"])[:2])
    parameter = mod["main"].params[0]
    observed = ObservedModel(mod, {"first": negative, "second": positive, "third": parameter})
    x = np.arange(-24, 24, dtype=np.float32).reshape(1, 3, 4, 4)
    _, found = observed.run({"x": x})
    np.testing.assert_array_equal(found["first"], -x)
    np.testing.assert_array_equal(found["second"], np.maximum(-x, 0))
    np.testing.assert_array_equal(found["third"], x)


def test_scales_of_a_quantised_model_stay_with_their_variables() -> None:
    """Two quantisations, the variables of both called alike: each result keeps its own steps."""

    def body(e: Emitter, x: Any) -> Any:
        value = x
        for scale in (0.25, 0.0625):
            arguments = relax.const(np.float32(scale)), relax.const(0, "int8")
            integers = e.emit(relax.op.quantize(e.emit(relax.op.tanh(value)), *arguments, axis=0, out_dtype="int8"))
            value = e.emit(relax.op.dequantize(integers, *arguments, axis=0))
        return e.relu(value)

    mod, fractions = remove_quantization(renamed(Emitter().module((1, 3, 4, 4), body), "x"))
    first, second = (binding.var for binding in bindings_of(mod["main"])[:2])
    assert fractions == {first: 2, second: 4}
