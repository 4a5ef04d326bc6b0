"""Tuning with the cycle model: better schedules, reasons for what does not fit, and MetaSchedule's own loop."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

from tests.vta.scheduled_functions import random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.vta.codegen.compute import Bias, Epilogue, conv2d, matmul
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.backends.vta.measurer import CycleMeasurer
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.errors import TuningError
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning.counted import KernelSearch
from tvm_ext.tuning.counted_metaschedule import builder_and_runner, design_space

TARGET = tvm.target.Target("tvm-ext/vta-1x16x16")
CONFIG = config_of_target(TARGET)
COSTS = costs_named("chisel")
MEASURER = CycleMeasurer(TARGET, COSTS)


def test_tuning_finds_a_schedule_that_runs_as_fast_as_it_says() -> None:
    func = conv2d(CONFIG, (1, 4, 14, 14), (8, 3, 3), 1, 1, Epilogue(9, 0, 127, "weights"))
    run = KernelSearch(func, MEASURER, recipe("random", batch=8, initial=8), batch=8)
    assert run.run(24) == run.best
    assert len(run.candidates) == 24
    counted = [candidate.cycles for candidate in run.candidates if candidate.cycles is not None]
    assert run.best.cycles == min(counted) < counted[0] * 1.001
    failed = [candidate.reason for candidate in run.candidates if candidate.cycles is None]
    assert failed
    assert all("do not fit" in reason or "turns of the loops over tiles" in reason for reason in failed)
    assert {candidate.sketch for candidate in run.candidates} == {
        "vta.conv2d (co n y x)", "vta.conv2d (n y x co)", "vta.conv2d (n y co x)",
    }  # fmt: skip
    scheduled = run.schedule(run.best).mod["main"]
    arguments = random_arguments(func, np.random.default_rng(0))
    found, program = run_on_vta(scheduled, arguments, CONFIG)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))
    assert time_program(program.instructions, CONFIG, COSTS).cycles == run.best.cycles


def test_the_same_seed_gives_the_same_run() -> None:
    func = matmul(CONFIG, 8, 16, 16)
    first, again = (KernelSearch(func, MEASURER, recipe("random", batch=8, initial=8), seed=3) for _ in range(2))
    assert first.run(8) == again.run(8)
    assert first.candidates == again.candidates


def test_metaschedule_tunes_with_the_cycle_model(tmp_path: Path) -> None:
    func = matmul(CONFIG, 8, 16, 16, Epilogue(8, bias="weights"))
    builder, runner = builder_and_runner(MEASURER)
    with only_tensor_intrinsics():
        database = ms.tune_tir(
            func, TARGET, str(tmp_path), 12, num_trials_per_iter=6, builder=builder, runner=runner,
            strategy=TunerStrategy(recipe("random", batch=6, initial=6)), space=design_space(func, MEASURER),
            cost_model=ms.cost_model.RandomModel(), num_tuning_cores=1, seed=1,
        )  # fmt: skip
    seconds = [float(record.run_secs[0]) for record in database.get_all_tuning_records() if record.run_secs]
    assert len(seconds) >= 6
    assert 0 < min(seconds) * COSTS.clock_mhz * 1e6 < 100_000


def test_what_no_rule_takes_is_not_tuned() -> None:
    data = te.placeholder((4, 1, 16), "int8", name="data")
    other = te.create_prim_func([data, te.compute((4, 1, 16), lambda *at: data(*at) + data(*at), name="twice")])
    with pytest.raises(TuningError, match="no convolution or matrix product"):
        KernelSearch(other, MEASURER, recipe("random"))


@pytest.mark.parametrize("bias", ["none", "weights", "accumulators"])
def test_the_oracle_of_the_target_says_what_fits(bias: Bias) -> None:
    func = conv2d(CONFIG, (1, 4, 28, 28), (16, 3, 3), 1, 1, Epilogue(9, bias=bias))
    rng = np.random.default_rng(0)
    for schedule in MEASURER.sketches(func).values():
        space = TraceSpace.of(schedule, tvm.IRModule({"main": func}))
        oracle = MEASURER.oracle(func, [knob.choices for knob in space.space.knobs])
        assert oracle is not None
        vectors = space.space.random(rng, 2000)
        counts = [[prod(choice[:-1]) for choice in knob.choices] for knob in space.space.knobs]
        turns = np.array([prod(counts[knob][choice] for knob, choice in enumerate(row)) for row in vectors.tolist()])
        vectors = vectors[turns <= 64]
        works = oracle(vectors)
        for chosen in (np.flatnonzero(works)[:4], np.flatnonzero(~works)[:4]):
            for at in chosen:
                made = space.schedule(vectors[at].tolist())
                assert made is not None
                assert (MEASURER.count(made.mod["main"])[0] is not None) == works[at]


def test_with_an_oracle_fewer_candidates_fail() -> None:
    func = conv2d(CONFIG, (1, 4, 28, 28), (16, 3, 3), 1, 1, Epilogue(9, 0, 127, "weights"))
    shares = {}
    for name in ("autotvm_sa", "validity_asked"):
        run = KernelSearch(func, MEASURER, recipe(name, 12, 12), seed=1)
        run.run(48)
        shares[name] = sum(candidate.cycles is None for candidate in run.candidates) / len(run.candidates)
        assert not run.notes
    assert shares["validity_asked"] < 0.5 * shares["autotvm_sa"]


def test_what_is_not_known_in_closed_form_has_no_oracle() -> None:
    rows = [[(1, 1)], [(1, 1, 1)], [(1, 1, 1)], [(1, 1)], [(1, 1)]]
    plain = conv2d(CONFIG, (1, 1, 7, 7), (1, 3, 3), 1, 1, Epilogue(8))
    grouped = conv2d(CONFIG, (1, 4, 7, 7), (4, 3, 3), 1, 1, Epilogue(8), groups=2)
    assert MEASURER.oracle(plain, rows) is not None
    assert MEASURER.oracle(plain, rows[1:]) is None
    for func in (grouped, matmul(CONFIG, 8, 16, 16)):
        assert MEASURER.oracle(func, rows) is None
