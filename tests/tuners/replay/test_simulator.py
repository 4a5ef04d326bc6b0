from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.tuners.replay.simulator import SimulatedLandscape, convolution_space
from tvm_ext.tuners.replay.tasks import LAYERS, TASKS, ConvolutionTask


def test_tasks_are_those_of_the_networks() -> None:
    """Numbers of tasks, and the work of some layers in MFLOP."""
    counts = {net: sum(task.name.startswith(net) for task in TASKS) for net in ("alexnet", "vgg16", "resnet18")}
    assert counts == {"alexnet": 5, "vgg16": 9, "resnet18": 12}
    mflops = {task.name: round(task.flops / 1e6, 1) for task in TASKS}
    known = {"alexnet-1": 140.6, "alexnet-2": 447.9, "vgg16-1": 173.4, "vgg16-9": 924.8, "resnet18-1": 236.0}
    assert known.items() <= (mflops | {"resnet18-12": 231.2}).items()
    assert mflops["resnet18-3"] == 25.7
    assert [task.name for task in LAYERS][-1] == "resnet18-11"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_landscapes(task: ConvolutionTask) -> None:
    """20,000 points of each: some fail, none beats the machine, the same every time, and there is much to gain."""
    landscape = SimulatedLandscape(task)
    assert len(landscape.space.knobs) == 8
    vectors = landscape.space.random(np.random.default_rng(0), 20_000)
    seconds = landscape.seconds(vectors)
    np.testing.assert_array_equal(seconds, SimulatedLandscape(task).seconds(vectors))
    works = np.isfinite(seconds)
    assert 0.2 < 1 - works.mean() < 0.7
    assert (landscape.modelled_seconds(vectors)[works] >= landscape.least_seconds()).all()
    share = landscape.least_seconds() / seconds[works]
    assert share.max() > 3 * np.median(share)

    measured = landscape.measure(vectors, seed=1)
    np.testing.assert_array_equal(np.isfinite(measured), works)
    np.testing.assert_array_equal(measured, landscape.measure(vectors, seed=1))
    relative = np.log(measured[works] / seconds[works])
    assert np.std(relative) == pytest.approx(landscape.noise, rel=0.1)
    assert abs(relative.mean()) < 0.001


def _seconds(task: ConvolutionTask, **choices: object) -> float:
    space = convolution_space(task)
    vector = [knob.choices.index(choices[knob.name]) for knob in space.knobs]
    return float(SimulatedLandscape(task).modelled_seconds(np.array([vector]))[0])


def test_what_is_known_to_matter_matters() -> None:
    task = TASKS[15]  # 64 channels, 56 x 56, 3 x 3
    good = {
        "tile_f": (2, 1, 32), "tile_y": (56, 1, 1), "tile_x": (1, 7, 8), "tile_rc": (4, 16),
        "tile_ry": (1, 3), "tile_rx": (1, 3), "auto_unroll_max_step": 0, "unroll_explicit": False,
    }  # fmt: skip
    best = _seconds(task, **good)
    assert best < 3 * SimulatedLandscape(task).least_seconds()
    worse = {
        "no whole vectors": {"tile_f": (16, 1, 4)},
        "few accumulators": {"tile_x": (8, 7, 1), "tile_f": (4, 1, 16)},
        "too many accumulators": {"tile_f": (1, 1, 64), "tile_x": (2, 1, 28)},
        "one task": {"tile_f": (1, 2, 32), "tile_y": (1, 56, 1)},
    }
    for reason, choices in worse.items():
        assert _seconds(task, **(good | choices)) > 1.2 * best, reason
    failing = {
        "stack": {"tile_f": (1, 1, 64), "tile_x": (1, 1, 56), "tile_y": (14, 1, 4)},
        "compile time": {"tile_rc": (1, 64), "auto_unroll_max_step": 512, "unroll_explicit": True},
    }
    for reason, choices in failing.items():
        assert not np.isfinite(_seconds(task, **(good | choices))), reason
