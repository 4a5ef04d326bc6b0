"""Which kernels run on one thread as a choice of whole networks: only small ones change, and no value does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

import tvm_ext
from tests.layout.test_choices import network
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.folders import open_database
from tvm_ext.layout.choices import FORK_OPTIONS, FORKS, write_choices
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.tuning.whole_network import network_offers

TWO = tvm.target.Target({**{str(key): value for key, value in native_target().export().items()}, "num-cores": 2})


def scheduled(imported, folder: Path) -> dict[str, bool]:
    """Give of each kernel whether it is divided among threads."""
    mod = imported.mod
    with TWO, tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(TWO, replace(PipelineOptions(), work_dir=str(folder))):
            mod = phase_pass(mod)
            if phase.name == "schedule":
                break
    funcs = {var.name_hint: func for var, func in mod.functions.items() if isinstance(func, tvm.tirx.PrimFunc)}
    return {name: "T.parallel" in func.script() for name, func in funcs.items()}


def test_only_small_kernels_change_and_more_of_them_with_more_forks(tmp_path: Path) -> None:
    counts = []
    imported = tvm_ext.import_model(network(16, 28))
    found = {}
    for option in FORK_OPTIONS:
        folder = tmp_path / option
        open_database(folder)
        write_choices(folder, {FORKS: option})
        found[option] = scheduled(imported, folder)
        counts.append(sum(found[option].values()))
    assert counts[0] > counts[-1]
    assert counts == sorted(counts, reverse=True)
    for option in FORK_OPTIONS[1:]:
        assert all(found[FORK_OPTIONS[0]][name] for name, divided in found[option].items() if divided)


def test_large_kernels_stay_divided(tmp_path: Path) -> None:
    open_database(tmp_path)
    write_choices(tmp_path, {FORKS: FORK_OPTIONS[-1]})
    assert any(scheduled(tvm_ext.import_model(network(64, 112)), tmp_path).values())


@pytest.mark.parametrize("option", [*FORK_OPTIONS, "of another release"])
def test_no_value_changes(option: str, tmp_path: Path) -> None:
    imported = tvm_ext.import_model(network(16, 17))
    open_database(tmp_path)
    write_choices(tmp_path, {FORKS: option})
    data = [np.random.default_rng(0).standard_normal((1, 16, 17, 17)).astype("float32")]
    chosen = tvm_ext.compile(imported, work_dir=tmp_path).run(data)
    for one, other in zip(chosen.values(), tvm_ext.compile(imported).run(data).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_is_offered_where_there_are_threads() -> None:
    imported = tvm_ext.import_model(network(16, 14))
    for cores in (1, 2):
        target = tvm.target.Target({**{str(key): value for key, value in TWO.export().items()}, "num-cores": cores})
        assert machine_of(target).cores == cores
        offers = {offer.key: offer for offer in network_offers(imported.mod, target, PipelineOptions())}
        assert (FORKS in offers) == (cores > 1)
