"""The comparison of a prior for CPUs, and of acquisition functions: counts by enumeration, and nothing leaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scripts import acquisitions
from scripts.glimpse import cpu_prior
from scripts.pretrain_loops import kernels
from tests.tuners.spaces import bowl, convolution_space
from tvm_ext.tuners.acquisition import ACQUISITIONS
from tvm_ext.tuners.cost_model import TileModel


@dataclass
class Kernel:
    """A kernel whose times are known."""

    known: dict[tuple[int, ...], float | None]
    space: Any = field(default_factory=convolution_space)

    @property
    def task(self) -> Any:
        return SimpleNamespace(space=SimpleNamespace(space=self.space))


def kernel(count: int, seed: int = 0) -> Kernel:
    space = convolution_space()
    space.default = space.vector(0)
    vectors = space.random(np.random.default_rng(seed), count)
    times = bowl(space)(vectors)
    known = {tuple(row): float(time) for row, time in zip(vectors.tolist(), times / times.max(), strict=True)}
    return Kernel(known, space)


@pytest.mark.parametrize("count", [1, 3, 4, 7, 9])
def test_the_expected_best_is_the_mean_over_all_sets(count: int) -> None:
    speeds = np.random.default_rng(count).random(7)
    speeds[2] = 0.0  # one that does not work
    sets = [max(chosen) for chosen in combinations(speeds, min(count, 7))]
    assert cpu_prior.expected_best(speeds, count) == pytest.approx(np.mean(sets))


def test_every_kernel_is_a_layer_of_a_network() -> None:
    found = {name: cpu_prior.network_of(name) for name in kernels()}
    listed = {name for names in cpu_prior.NETWORKS.values() for name in names.split()}
    assert listed <= {name.partition("_")[2] for name in found}
    assert {"alexnet", "vgg16", "mobilenet", *cpu_prior.NETWORKS} == set(found.values())
    assert found["convolution_3_64_224_11_4_2"] == "alexnet"
    assert found["convolution_576_576_14_3_1_1_576"] == "mobilenet"


@pytest.mark.parametrize("left_out", ["both", "network"])
def test_nothing_that_is_left_out_is_trained_on(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("convolution_16_64_55_1", "convolution_64_16_55_1", "convolution_192_64_28_1", "product_128_312_312")
    given = {(name, target): kernel(9) for name in names for target in ("avx512", "avx2")}
    key_of = {id(value): key for key, value in given.items()}
    seen = []

    def judged(one: Any, alike: Any) -> dict[str, Any]:
        seen.append((key_of[id(one)], {key_of[id(other)] for other in alike}))
        return {}

    monkeypatch.setattr(cpu_prior, "_judged", judged)
    cpu_prior._compared(given, left_out)
    assert {key for key, _ in seen} == set(given)
    for (name, target), others in seen:
        expected = {
            (other, kind)
            for other, kind in given
            if cpu_prior.network_of(other) != cpu_prior.network_of(name) and (left_out == "network" or kind != target)
        }
        assert others == expected


def test_a_prior_orders_a_kernel_like_those_that_it_was_trained_on() -> None:
    pytest.importorskip("torch")
    others = [kernel(80, seed) for seed in (1, 2, 3)]
    for other in (*others, new := kernel(40, 4)):
        other.space.processor = (4.0, 32.0, 1.0)
    row = cpu_prior._judged(new, others)
    assert row["trained_on"] == 240
    assert row["prior_first"] > row["random_first"]
    assert row["prior"] < row["random"]


@pytest.mark.parametrize("acquisition", [acquisitions.MEAN, *ACQUISITIONS])
def test_trials_are_counted_until_one_is_close(acquisition: str) -> None:
    one = kernel(30)
    times = np.array(list(one.known.values()))
    far = int((times > 1.05 * times.min()).sum())
    count = acquisitions.trials(one, TileModel(), acquisition, seed=0, told=3)
    assert 1 <= count <= far + 1
    assert count == acquisitions.trials(one, TileModel(), acquisition, seed=0, told=3)
