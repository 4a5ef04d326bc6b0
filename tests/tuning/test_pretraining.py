"""From a tuning database to a cost model of a file, and from there to a tuner."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tests.schedules.kernels import graph
from tvm_ext.database.folders import open_database
from tvm_ext.errors import OptionError, TuningError
from tvm_ext.tuners.pretrained.artefact import Pretrained
from tvm_ext.tuners.recipes import RECIPES, recipe, with_artefact
from tvm_ext.tuning.pretraining import pretrain
from tvm_ext.tuning.tasks import Task, kernels_to_tune

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
"""Nothing is run: of other CPUs convolutions of 32 and of 64 channels may be divided by different knobs."""


def convolution(channels: int) -> tvm.IRModule:
    weight = np.random.default_rng(0).standard_normal((channels, channels, 1, 1)).astype("float32")
    return graph(lambda bb, x: relax.op.nn.conv2d(x, relax.const(weight)), [((1, channels, 28, 28), "float32")])


def task_of(channels: int) -> Task:
    return max(kernels_to_tune(convolution(channels), TARGET), key=lambda task: task.space.space.size)


def law(task: Task, vectors: np.ndarray) -> np.ndarray:
    """Seconds: kernels with few features in their first knob are faster."""
    return 1e-3 * (1.0 + np.asarray(vectors)[:, 0])


def fill(folder: Path, channels: int, count: int) -> None:
    """Write made-up measurements of random configurations."""
    task, database, target = task_of(channels), open_database(folder), TARGET
    vectors = task.space.space.random(np.random.default_rng(channels), count)
    workload = database.commit_workload(task.mod)
    arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=True)
    for vector, seconds in zip(vectors, law(task, vectors), strict=True):
        schedule = task.space.schedule(vector)
        if schedule is not None:
            schedule.enter_postproc()
            record = ms.database.TuningRecord(schedule.trace, workload, [float(seconds)], target, arguments)
            database.commit_tuning_record(record)


def test_what_databases_hold_is_known_of_a_new_kernel(tmp_path: Path) -> None:
    for channels in (32, 64):
        fill(tmp_path / str(channels), channels, 60)
    found = pretrain([tmp_path / "32", tmp_path / "64"], TARGET)
    assert sum(row["measurements"] for row in found.notes["structures"]) >= 64
    found.save(tmp_path / "trees.npz")
    row = with_artefact(recipe("evolution_pretrained"), "evolution_pretrained", tmp_path / "trees.npz")
    task = task_of(96)
    tuner = row.tuner(task.space.space)
    assert tuner.notes == []
    tuner.suggest(1)  # the rule's own choice
    suggested = np.array(tuner.suggest(8))
    random = task.space.space.random(np.random.default_rng(0), 100)
    assert law(task, suggested).mean() < 0.7 * law(task, random).mean()


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="no tuning database"):
        pretrain([tmp_path / "nothing"], TARGET)
    fill(tmp_path / "few", 32, 3)
    with pytest.raises(TuningError, match="too few measurements"):
        pretrain([tmp_path / "few"], TARGET)
    Pretrained({}).save(tmp_path / "empty.npz")
    with pytest.raises(OptionError, match="'evolution' has no use for a pretrained cost model; sa_as_pretrained"):
        with_artefact(RECIPES["evolution"], "evolution", tmp_path / "empty.npz")
    with pytest.raises(TuningError, match=r"there is no file .*none\.npz: expected a pretrained cost model"):
        with_artefact(RECIPES["sa_as_pretrained"], "sa_as_pretrained", tmp_path / "none.npz")
    Pretrained({}).save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    arrays = dict(np.load(tmp_path / "whole.npz"))
    np.savez(tmp_path / "other.npz", about=np.array(str(arrays["about"]).replace('"format": 1', '"format": 9')))
    np.savez(tmp_path / "strange.npz", rows=np.zeros(3))
    named = {"random": np.random.default_rng(0).bytes(5000), "empty": b"", "cut": whole[: len(whole) // 2]}
    for name, content in named.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
    for name in (*named, "other", "strange"):
        row = with_artefact(RECIPES["sa_as_pretrained"], "sa_as_pretrained", tmp_path / f"{name}.npz")
        tuner = row.tuner(task_of(96).space.space)
        (note,) = tuner.notes
        assert re.fullmatch(rf"no pretrained cost model is used: .*{name}\.npz: .* from it \(.+\); .*", note)
        assert tuner.suggest(8)
