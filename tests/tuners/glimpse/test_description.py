"""What VTA says of tiles agrees with what its schedules need and do."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.glimpse.family import DESIGNS, LAYERS, describe, template
from tvm_ext.backends.vta.codegen.description import RESOURCES


@pytest.mark.parametrize("design", ["1x16a", "2x32c"])
@pytest.mark.parametrize("layer", ["resnet18-12", "alexnet-3", "resnet18-5"])
def test_what_works_is_what_uses_no_more_than_there_is(design: str, layer: str) -> None:
    row, described = template(DESIGNS[design], LAYERS[layer]), describe(DESIGNS[design], LAYERS[layer])
    vectors = row.space.vectors(np.arange(row.space.size))
    usage = described.usage(vectors)
    depths = [np.log2(row.config.depths[name]) for name in RESOURCES[:3]]
    limits = np.array([*depths, np.log2(row.most_turns), 0, 0])
    np.testing.assert_array_equal((usage <= limits + 1e-9).all(axis=1), row.works(vectors))


def test_features_are_finite_and_tell_configurations_apart() -> None:
    row, described = (
        template(DESIGNS["1x16a"], LAYERS["resnet18-11"]),
        describe(DESIGNS["1x16a"], LAYERS["resnet18-11"]),
    )
    vectors = row.space.vectors(np.arange(row.space.size))
    features = described.features(vectors)
    assert np.isfinite(features).all()
    working = vectors[row.works(vectors)]
    same = {}
    for vector, structure in zip(working, row.structures(working), strict=True):
        same.setdefault(structure, []).append(tuple(described.features(vector[None])[0]))
    assert all(len(set(rows)) == 1 for rows in same.values())  # one program, one description
    assert described.takes_part.shape == (len(RESOURCES), len(row.space.knobs))
    assert not described.takes_part[:, -1].any()


def test_a_knob_that_takes_no_part_changes_nothing() -> None:
    row, described = template(DESIGNS["1x32b"], LAYERS["alexnet-4"]), describe(DESIGNS["1x32b"], LAYERS["alexnet-4"])
    rng = np.random.default_rng(0)
    vectors = row.space.random(rng, 200)
    for knob, radix in enumerate(row.space.radices.tolist()):
        changed = vectors.copy()
        changed[:, knob] = rng.integers(0, radix, len(vectors))
        differs = (described.usage(changed) != described.usage(vectors)).any(axis=0)
        assert not (differs & ~described.takes_part[:, knob]).any()
        assert radix == 1 or not described.takes_part[:, knob].any() or differs.any()


def test_no_layer_of_one_network_is_one_of_another() -> None:
    shapes = {}
    for name, task in LAYERS.items():
        shapes.setdefault((task.inputs, task.outputs, task.size, task.kernel, task.stride), set()).add(task.network)
        assert name
    assert all(len(networks) == 1 for networks in shapes.values())
