"""What a stranger gets wrong is told in a sentence: spaces, tuners, measurers, databases, tune."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm

import tvm_ext.tuners
import tvm_ext.tuning
from tests.tuners.spaces import convolution_space
from tvm_ext.errors import OptionError, TuningError
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.space import ConfigSpace, Knob

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})
SPACE = convolution_space()
ZEROS = (0,) * len(SPACE.knobs)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Knob("a", "xyz"), "'a'.*'xyz'.*expected a tuple"),  # type: ignore[arg-type]
        (lambda: Knob("a", (1, (2, 3))), "'a'.*tuples of equal length"),
        (lambda: Knob("a", ((1, 2), (1, 2, 3))), "'a' have 2, 3 numbers"),
        (lambda: Knob.split("a", 0, 2), "'a': extent is 0"),
        (lambda: Knob.split("a", -4, 2), "'a': extent is -4"),
        (lambda: Knob.split("a", 4, 0), "'a': parts is 0"),
        (lambda: Knob.split("a", 4.0, 2), "'a': extent is 4.0"),  # type: ignore[arg-type]
        (lambda: ConfigSpace("ab"), "made of knobs, found 'ab'"),  # type: ignore[arg-type]
        (lambda: ConfigSpace([Knob("a", (1, 2))], default=[0.5]), "choice 0.5"),  # type: ignore[list-item]
        (lambda: recipe("sa_as").tuner(7), "ConfigSpace, found 7"),  # type: ignore[arg-type]
        (lambda: recipe("sa_as").tuner(SPACE).update(7), "given 7"),  # type: ignore[arg-type]
        (lambda: recipe("sa_as").tuner(SPACE).update([(ZEROS, 1.0)]), r"expected Measurement\("),  # type: ignore[list-item]
    ],
)
def test_spaces_and_tuners(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(TuningError, match=says):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: recipe("sa_as").tuner(SPACE, seed="a"), "seed of a tuner is 'a'"),  # type: ignore[arg-type]
        (lambda: recipe("sa_as").tuner(SPACE, seed=-1), "seed of a tuner is -1"),
        (lambda: recipe("sa_as").tuner(SPACE).suggest("3"), "asked for '3'"),  # type: ignore[arg-type]
        (lambda: tvm_ext.tuners.builder_and_runner(threads="2"), "threads of a measurer is '2'"),
        (lambda: tvm_ext.tuners.builder_and_runner(2), "was given 2; expected a Measurer alone"),
        (lambda: tvm_ext.tuning.open_database(None), "folder of a database is None"),  # type: ignore[arg-type]
        (lambda: tvm_ext.tuning.kernels_to_tune(tvm.IRModule(), "llvm"), r"target is 'llvm'; expected a tvm\.target"),  # type: ignore[arg-type]
    ],
)
def test_options(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mod": "model.onnx"}, r"'model\.onnx'.*import_model"),
        ({"target": "llvm"}, "target is 'llvm'"),
        ({"recipe": "chameleon"}, "recipe is 'chameleon'.*recipes"),
        ({"trials": 1.5}, r"trials is 1\.5"),
        ({"trials": -1}, "trials is -1"),
    ],
)
def test_tune_leaves_nothing_behind(wrong: dict[str, Any], says: str, tmp_path: Path) -> None:
    given = {"mod": tvm.IRModule(), "target": TARGET, "trials": 4, "recipe": recipe("random")} | wrong
    with pytest.raises(OptionError, match=says):
        tvm_ext.tuning.tune(work_dir=tmp_path / "tuned", **given)
    assert not (tmp_path / "tuned").exists()


def test_one_measurement_alone_is_one_measurement() -> None:
    tuner = recipe("sa_as").tuner(SPACE)
    tuner.update(Measurement(ZEROS, 0.5))  # type: ignore[arg-type]
    assert [row.seconds for row in tuner.measurements] == [0.5]


def test_a_database_is_opened_by_its_name(tmp_path: Path) -> None:
    tvm_ext.tuning.open_database(str(tmp_path / "tuned"))
    assert sorted(path.name for path in (tmp_path / "tuned").glob("database_*.json"))


def test_builder_and_runner_take_a_measurer_that_is_there() -> None:
    with Measurer(threads=1, workers=1) as measurer:
        builder, runner = tvm_ext.tuners.builder_and_runner(measurer)
        assert builder._inst.measurer is runner._inst.measurer is measurer
        with pytest.raises(OptionError, match=r"and threads; expected a Measurer alone, or options of a new one"):
            tvm_ext.tuners.builder_and_runner(measurer, threads=2)
