"""Large results are handed over without a copy: later runs leave them alone, also after the model is gone."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tvm_ext
from tests.shapes.dynamic_models import MODELS
from tvm_ext.artifact.arguments import LARGE_RESULT


@pytest.mark.parametrize("is_open", [True, False])
def test_results_of_earlier_runs_stay(is_open: bool) -> None:
    case, rows = MODELS["mlp"](), 4000
    shapes = {} if is_open else {"input_shapes": {"x": (rows, 17)}}
    model = tvm_ext.compile(case.model, dynamic="n=1..5000" if is_open else None, **shapes)
    feeds = [{"x": np.random.default_rng(seed).standard_normal((rows, 17)).astype("float32")} for seed in range(3)]
    kept = [model.run(given)["y"] for given in feeds]
    assert kept[0].nbytes >= LARGE_RESULT
    assert not any(np.shares_memory(kept[0], other) for other in kept[1:])
    again = [model.run(given)["y"].copy() for given in feeds]
    kept[0][:] += 0  # they belong to the caller, who may write to them
    del model
    gc.collect()
    for before, after in zip(kept, again, strict=True):
        np.testing.assert_array_equal(before, after)
