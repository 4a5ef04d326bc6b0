"""Networks of the usual blocks, in floats, with an open batch or quantised, give right values in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.fuzz import reference
from scripts.fuzz.judge import judge
from scripts.fuzz.networks import SMALL, draw_network
from scripts.fuzz.trial import MOST_OPEN
from tests.cuda.test_random_networks import FURTHER, OPTIONS, TOLERANCES
from tests.cuda.whole_model import EmulatedModel
from tvm_ext.frontend import import_model
from tvm_ext.target import resolve_target

pytest.importorskip("onnxruntime")

COMBINATIONS = (*OPTIONS, *FURTHER)


def check(seed: int) -> bool:
    """Compare a seed's network; False where onnxruntime's quantiser refuses it."""
    try:
        model, feeds = draw_network(np.random.default_rng((seed, 3)), SMALL)
    except (RuntimeError, ValueError):
        return False
    known = reference.concrete(model, feeds)
    expected = reference.run(known, feeds)
    is_quantised = any("Quantize" in node.op_type for node in model.graph.node)
    options = dict(COMBINATIONS[seed % len(COMBINATIONS)])
    if is_quantised:  # whose integers have no other precision
        options.pop("precision", None)
    imported = import_model(model, **({"dynamic": {"batch": (1, MOST_OPEN)}} if known is not model else {}))
    target = resolve_target({"kind": "cuda", "arch": ("sm_80", "sm_90", "sm_100")[seed % 3]})
    emulated = EmulatedModel(imported.mod, target, **options)
    found = [np.asarray(array) for array in emulated(*(feeds[spec.name] for spec in imported.inputs))]
    where = f"{seed} {target.attrs['arch']} {options}"
    if is_quantised:
        verdicts = judge(known, feeds, expected, found)
        assert all(verdict.kind != "wrong" for verdict in verdicts), f"{where}: {verdicts}"
    else:
        halves = any(array.dtype == np.float16 for array in expected)
        relative, absolute = TOLERANCES["float16" if halves else str(options.get("precision", "float32"))]
        for want, have in zip(expected, found, strict=True):
            assert (want.shape, want.dtype) == (have.shape, have.dtype), where
            scale = max(1.0, float(np.abs(want.astype("float64")).max(initial=0)))
            np.testing.assert_allclose(have, want, rtol=relative, atol=absolute * scale, err_msg=where)
    assert not emulated.faults, where
    return True


@pytest.mark.parametrize("seed", [5, 22, *range(28, 34)])
def test_block_networks(seed: int) -> None:
    if not check(seed):
        pytest.skip("the quantiser refuses it")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 180, 10))
def test_many_block_networks(start: int) -> None:
    assert sum(map(check, range(start, start + 10))) >= 5
