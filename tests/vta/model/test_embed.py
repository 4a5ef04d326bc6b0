"""Operators that no rule of VTA takes run there by embedding, and give what they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.vta.model.test_offload import COSTS, TARGET, Emitter
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.embed import embed_layers
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.offload import layers_on_vta, offload, prepare
from tvm_ext.backends.vta.model.relax_layers import read_graph
from tvm_ext.compiler import compile
from tvm_ext.graph.origins import bindings_of

SLOW = HostSpeed(macs=1e5)
"""A CPU to which no operator is left, however small."""


def biased(e: Emitter, sums: Any, *shape: int) -> Any:
    return e.relu(e.emit(relax.op.add(sums, e.constant(*shape))))


def dilated(e: Emitter, x: Any) -> Any:
    call = relax.op.nn.conv2d(x, e.constant(17, 16, 3, 2), padding=(2, 1), dilation=(2, 3), strides=(1, 2))
    return biased(e, e.emit(call), 1, 17, 1, 1)


def between(e: Emitter, x: Any) -> Any:
    """Dilated between layers that VTA has rules for; what it gives is read twice."""
    first = e.relu(e.conv(x, 16))
    wide = e.emit(relax.op.nn.conv2d(first, e.constant(16, 16, 3, 3), padding=2, dilation=2))
    return e.emit(relax.op.add(e.conv(wide, 16), wide))


def grouped(e: Emitter, x: Any) -> Any:
    call = relax.op.nn.conv2d(x, e.constant(32, 16, 3, 3), padding=2, dilation=2, groups=2)
    return biased(e, e.emit(call), 1, 32, 1, 1)


def uneven(e: Emitter, x: Any) -> Any:
    return biased(e, e.emit(relax.op.nn.conv2d(x, e.constant(20, 16, 3, 3), padding=(0, 1, 2, 1))), 1, 20, 1, 1)


def channels_last(e: Emitter, x: Any) -> Any:
    call = relax.op.nn.conv2d(
        x, e.constant(16, 3, 3, 16), padding=2, dilation=2, data_layout="NHWC", kernel_layout="OHWI"
    )
    return e.relu(e.emit(relax.op.add(e.emit(call), e.constant(16))))


def conv1d(e: Emitter, x: Any) -> Any:
    return biased(e, e.emit(relax.op.nn.conv1d(x, e.constant(33, 16, 5), padding=2, strides=2)), 1, 33, 1)


def products(e: Emitter, x: Any) -> Any:
    return e.emit(relax.op.matmul(x, e.constant(3, 31, 17)))


def routing(e: Emitter, x: Any) -> Any:
    return e.emit(relax.op.einsum((x, e.constant(7, 3, 16, 16)), "bik,ijdk->bijd"))


CASES: dict[str, tuple[tuple[int, ...], Callable[[Emitter, Any], Any]]] = {
    "dilated": ((1, 16, 11, 13), dilated),
    "dilated between layers": ((1, 16, 9, 9), between),
    "dilated and grouped": ((1, 32, 7, 8), grouped),
    "padding that differs": ((1, 16, 9, 8), uneven),
    "channels last": ((1, 7, 9, 16), channels_last),
    "one dimension": ((2, 16, 31), conv1d),
    "a batch of products": ((3, 17, 31), products),
    "capsule routing": ((1, 7, 16), routing),
}


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    return relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("config", ["sim", "sim_4x8"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_anew_computes_the_same(case: str, config: str) -> None:
    shape, body = CASES[case]
    mod = Emitter().module(shape, body)
    floats, _ = prepare(mod)
    refused = read_graph(floats["main"], 1).refused
    written, found, reasons = embed_layers(floats, refused, load_config(config), COSTS, SLOW)
    assert len(found) == 1, reasons
    x = np.random.default_rng(2).standard_normal(shape).astype("float32")
    np.testing.assert_allclose(run(written, x), run(mod, x), rtol=1e-4, atol=1e-4)
    assert len(read_graph(written["main"], 1).layers) > len(read_graph(floats["main"], 1).layers)


@pytest.mark.parametrize("case", ["dilated between layers", "one dimension"])
def test_embedded_operators_run_on_vta(case: str) -> None:
    shape, body = CASES[case]
    mod = Emitter().module(shape, body)
    rng = np.random.default_rng(2)
    samples = {"x": rng.standard_normal((4 * shape[0], *shape[1:])).astype("float32")}
    model = offload(mod, load_config("sim"), COSTS, samples, SLOW, largest_error=0.5, largest_output_error=0.5)
    assert any("the matrix unit was embedded into it" in note for note in model.notes), model.notes
    right = run(mod, samples["x"][: shape[0]])
    found = run(model.mod, samples["x"][: shape[0]])
    assert np.sqrt(((found - right) ** 2).mean() / (right**2).mean()) < 0.1


def test_everything_is_embedded_if_asked_for() -> None:
    def body(e: Emitter, x: Any) -> Any:
        return e.relu(e.conv(e.relu(e.conv(x, 20)), 9, stride=2))

    mod = Emitter().module((1, 3, 9, 10), body)
    floats, _ = prepare(mod)
    args = (floats, read_graph(floats["main"], 1).refused, load_config("sim"), COSTS, HostSpeed())
    assert not embed_layers(*args)[1]
    written, found, _ = embed_layers(*args, everything=True)
    assert len(found) == 2
    x = np.random.default_rng(2).standard_normal((1, 3, 9, 10)).astype("float32")
    np.testing.assert_allclose(run(written, x), run(mod, x), rtol=1e-4, atol=1e-4)


def test_bias_and_relu_are_done_on_vta() -> None:
    shape, body = CASES["dilated"]
    floats, _ = prepare(Emitter().module(shape, body))
    written, found, _ = embed_layers(floats, read_graph(floats["main"], 1).refused, load_config("sim"), COSTS, SLOW)
    (layer,) = read_graph(written["main"], 1).layers
    assert layer.low == 0
    assert layer.bias is not None
    assert np.abs(layer.bias).max() > 0
    assert len(found) == 1


def test_the_rest_stays_with_a_reason() -> None:
    def body(e: Emitter, x: Any) -> Any:
        depthwise = e.emit(relax.op.nn.conv2d(x, e.constant(16, 1, 3, 3), padding=2, dilation=2, groups=16))
        return e.emit(relax.op.nn.conv2d(depthwise, e.constant(2, 16, 1, 1), padding=(0, 0, 1, 1)))

    mod = Emitter().module((1, 16, 4, 4), body)
    model = offload(mod, load_config("sim"), COSTS, {"x": np.ones((1, 16, 4, 4), "float32")})
    assert not model.partition.on_vta
    assert any("was not embedded" in note and "finds no axis" in note for note in model.notes), model.notes
    assert any("was not embedded" in note and "the CPU takes less" in note for note in model.notes), model.notes


def test_notes_call_operators_as_the_model_does() -> None:
    """Numbers of variables change as operators are written anew: none is both embedded and not."""

    def body(e: Emitter, x: Any) -> Any:
        for dilation in (1, 2, 4):
            x = biased(e, e.emit(relax.op.nn.conv1d(x, e.constant(16, 16, 3), padding=dilation, dilation=dilation)), 1)
        return x

    mod = Emitter().module((1, 16, 64), body)
    names = [b.var.name for b in bindings_of(mod["main"].body) if "conv1d" in str(b.value)]
    samples = np.random.default_rng(3).standard_normal((4, 16, 64)).astype("float32")
    seen = set()
    for largest in (0.5, 0.02, 1e-4):
        model = offload(mod, load_config("sim"), COSTS, {"x": samples}, SLOW, largest_error=largest)
        made = [note.split()[0] for note in model.notes if "was embedded into it" in note]
        left = [note.split()[0] for note in model.notes if "was not embedded" in note]
        assert sorted(made + left) == sorted(names), model.notes
        seen.add(len(made))
    assert seen >= {0, 3}
    assert names == [b.var.name for b in bindings_of(mod["main"].body) if "conv1d" in str(b.value)]


@pytest.mark.parametrize("embed", ["uncovered", "off"])
def test_the_option_says_whether(embed: str) -> None:
    def body(e: Emitter, x: Any) -> Any:
        return e.relu(e.emit(relax.op.nn.conv2d(x, e.constant(48, 32, 3, 3), padding=2, dilation=2)))

    mod = Emitter().module((1, 32, 28, 28), body)
    samples = np.random.default_rng(3).standard_normal((2, 32, 28, 28)).astype("float32")
    model = compile(mod, TARGET, calibration={"x": samples}, embed=embed)
    (found,) = model.run([samples[:1]]).values()
    right = run(mod, samples[:1])
    error = np.sqrt(((found - right) ** 2).mean() / (right**2).mean())
    assert (error > 1e-3) == (embed == "uncovered")
    assert error < 0.05


def quantised(e: Emitter, x: Any, scale: float) -> Any:
    """Through 8 bits and back, as models are that were quantised before."""
    step, zero = relax.const(np.float32(scale)), relax.const(0, "int8")
    integers = e.emit(relax.op.quantize(x, step, zero, axis=0, out_dtype="int8"))
    return e.emit(relax.op.dequantize(integers, step, zero, axis=0))


def widely(e: Emitter, x: Any) -> Any:
    return e.emit(relax.op.nn.conv2d(x, e.constant(16, 16, 3, 3), padding=2, dilation=2))


def test_operators_of_quantised_models_keep_their_scales() -> None:
    def body(e: Emitter, x: Any) -> Any:
        x = quantised(e, x, 2**-5)
        x = quantised(e, biased(e, widely(e, x), 1, 16, 1, 1), 2**-3)
        return quantised(e, widely(e, x), 2**-2)

    mod = Emitter().module((1, 16, 9, 11), body)
    model = offload(mod, load_config("sim"), COSTS, None, SLOW)  # without calibration data
    assert sum("the matrix unit was embedded into it" in note for note in model.notes) == 2, model.notes
    assert [model.network.fractions[integer.layer.name] for integer in model.network.layers] == [3, 2]
    x = np.random.default_rng(5).standard_normal((1, 16, 9, 11)).astype("float32")
    apart = np.abs(run(model.mod, x) - run(mod, x)) / 2**-2
    assert apart.mean() < 0.5
    assert apart.max() <= 3  # weights are rounded to 8 bits


def test_what_a_quantised_model_leaves_in_floats_is_not_embedded() -> None:
    def body(e: Emitter, x: Any) -> Any:
        x = quantised(e, x, 2**-5)
        return quantised(e, e.emit(relax.op.add(widely(e, x), x)), 2**-2)

    mod = Emitter().module((1, 16, 9, 11), body)
    model = offload(mod, load_config("sim"), COSTS, None, SLOW)
    assert not model.partition.on_vta
    assert any("quantises other tensors than its data and its result" in note for note in model.notes), model.notes
    x = np.random.default_rng(5).standard_normal((1, 16, 9, 11)).astype("float32")
    assert np.isfinite(run(model.mod, x)).all()


def test_embedded_operators_are_among_the_layers_to_tune() -> None:
    shape, body = CASES["dilated between layers"]
    found = layers_on_vta(Emitter().module(shape, body), load_config("sim"), COSTS, SLOW)
    assert len(found) == 3  # the dilated one between two that rules take
