"""Networks of products that nobody built give onnxruntime's values in the emulator, on tensor cores of all kinds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.cuda.drawn_costs import drawn_costs
from tests.cuda.random_products import draw
from tests.cuda.whole_model import EmulatedModel
from tests.shapes.random_network import quiet
from tests.shapes.test_random_networks import compare, session_of
from tvm_ext.frontend import import_model
from tvm_ext.target import resolve_target

onnxruntime = pytest.importorskip("onnxruntime")

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90", "sm_90a", "sm_100", "sm_120")
HOPPER = ("sm_90", "sm_90a")
PRECISIONS = ("float16", "bfloat16", "tf32", "a model in float16", "float32")
TOLERANCES = {
    "float32": (2e-3, 2e-4), "tf32": (2e-3, 4e-3), "float16": (5e-3, 5e-3), "bfloat16": (2e-2, 2e-2),
    "a model in float16": (5e-3, 1e-2),
}  # fmt: skip
"""How far a result may be from onnxruntime's, of itself and of the largest one."""
FAR_APART = 0.1
"""How far all together may be where rounding carries single ones further, of all."""


def settings(seed: int) -> tuple[str, str, dict[str, Any], int | None]:
    """Draw architecture, precision, options of the pipeline, and the seed of the costs."""
    rng = random.Random(seed)
    arch, precision = rng.choice(ARCHITECTURES), rng.choice(PRECISIONS)
    if (arch == "sm_75" and precision in ("bfloat16", "tf32")) or (arch in HOPPER and precision in ("tf32", "float32")):
        precision = "float16"
    options: dict[str, Any] = {} if precision in PRECISIONS[3:] else {"precision": precision}
    if rng.random() < 0.5:
        options |= {"fuse": "mapping-type", "rewrite": rng.choice(["fast", "strict", "off"])}
    if rng.random() < 0.3:
        options["memory"] = rng.choice(["optimal", "stock"])
    if rng.random() < 0.3:
        options["winograd"] = False
    # So small products are multiplied by wgmma only where costs are drawn.
    return arch, precision, options, seed if arch in HOPPER or rng.random() < 0.7 else None


def apart(want: np.ndarray, have: np.ndarray, precision: str) -> int:
    """Count the elements that are not what is wanted."""
    relative, absolute = TOLERANCES[precision]
    wide, narrow = want.astype("float64"), have.astype("float64")
    scale = max(1.0, float(np.abs(wide).max(initial=0)))
    return int((~np.isclose(narrow, wide, rtol=relative, atol=absolute * scale)).sum())


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run kernels that are not scheduled, on this machine."""
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(value) for value in inputs))
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [part.numpy() for part in result]


def check(seed: int) -> EmulatedModel:
    """Compile a network with random settings, run it, and give the kernels it had."""
    arch, precision, options, costs = settings(seed)
    network = draw(seed, "float16" if precision == PRECISIONS[3] else "float32", deep=arch in HOPPER)
    model, feeds = network.model(), network.feeds({}, seed)
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), quiet()).run(None, feeds)
    imported = import_model(model)
    with drawn_costs(costs):
        emulated = EmulatedModel(imported.mod, resolve_target({"kind": "cuda", "arch": arch}), **options)
    found = emulated(*(feeds[spec.name] for spec in imported.inputs))
    where = f"{seed} {arch} {precision} {options} {costs}"
    unscheduled: list[np.ndarray] = []
    for place, (want, have) in enumerate(zip(wanted, found, strict=True)):
        assert (want.shape, want.dtype) == (have.shape, have.dtype), where
        if apart(want, have, precision):
            # Far from onnxruntime's is what rounding makes of it in other kernels, too.
            unscheduled = unscheduled or run(emulated.fused, [feeds[spec.name] for spec in imported.inputs])
            assert apart(unscheduled[place], have, precision) == 0, where
            wide, narrow = want.astype("float64"), have.astype("float64")
            assert np.linalg.norm(wide - narrow) <= FAR_APART * np.linalg.norm(wide), where
    assert not emulated.faults, where
    return emulated


@pytest.mark.parametrize("seed", [3, 5, 7, 16, 17, 25, 54])
def test_random_products(seed: int) -> None:
    check(seed)


def check_quantized(seed: int) -> None:
    """Compile a network of products of bytes with random settings, and run it."""
    rng = random.Random(seed)
    arch, options = rng.choice(ARCHITECTURES), rng.choice([{}, {"fuse": "mapping-type", "rewrite": "strict"}])
    network = draw(seed, quantized=True)
    model, feeds = network.model(), network.feeds({}, seed)
    wanted = session_of("quantized", model).run(None, feeds)
    imported = import_model(model)
    with drawn_costs(seed if seed % 3 else None):
        emulated = EmulatedModel(imported.mod, resolve_target({"kind": "cuda", "arch": arch}), **options)
    found = emulated(*(feeds[spec.name] for spec in imported.inputs))
    where = f"{seed} {arch} {options}"
    for want, have in zip(wanted, found, strict=True):
        compare("quantized", want, have, where)
    assert not emulated.faults, where


@pytest.mark.parametrize("seed", [1, 8, 16, 26, 79, 89])
def test_random_quantized_products(seed: int) -> None:
    check_quantized(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 100, 10))
def test_many_random_quantized_products(start: int) -> None:
    for seed in range(start, start + 10):
        check_quantized(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 200, 10))
def test_many_random_products(start: int) -> None:
    rules = [rule for seed in range(start, start + 10) for rule in check(seed).rules.values()]
    assert "cuda.tensor_matmul" in rules


def test_rows_in_another_order_behind_a_padded_tile() -> None:
    """Heads are joined by a reshape and a transpose: rows beyond the product's own are written nowhere."""
    torch = pytest.importorskip("torch")

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(24, 24)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return y + self.linear(x).reshape(7, 2, 24).transpose(0, 1).reshape(14, 24)

    x, y, model = torch.randn(14, 24), torch.randn(14, 24), Joined()
    for options in ({"precision": "float16"}, {}):
        emulated = EmulatedModel(torch.export.export(model, (x, y)), fuse="mapping-type", **options)
        (found,) = emulated(x.numpy(), y.numpy())
        np.testing.assert_allclose(found, model(x, y).detach().numpy(), rtol=5e-3, atol=5e-3)
        assert emulated.faults == []
