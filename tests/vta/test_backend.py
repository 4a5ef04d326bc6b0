"""VTA as a target like any other: the phase ``partition``, tuned models, boards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.vta.model.test_offload import Emitter, pooled, residual_block
from tvm_ext.artifact.compiled_model import load
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.board.board import Board
from tvm_ext.backends.vta.board.offloaded import BoardRunner, open_runner
from tvm_ext.backends.vta.board.simulated import simulated_device
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.tuned import read_tuned
from tvm_ext.backends.vta.config import config_of_target, load_config
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.relax_layers import read_graph
from tvm_ext.backends.vta.timing.costs import costs_named, costs_of_config
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.compiler import compile
from tvm_ext.database.files import VTA_SCHEDULES
from tvm_ext.errors import InputError, OptionError, TuningError, VTADeviceError
from tvm_ext.registration import VTA_BOARDS
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune

TARGET = "tvm-ext/vta-1x16x16"
SHAPE = (1, 20, 12, 12)
BOARDS = [f"vta-{name}" for name in VTA_BOARDS]


def network(body: Callable = residual_block) -> tvm.IRModule:
    return Emitter().module(SHAPE, body)


def samples() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((2, *SHAPE[1:])).astype(np.float32)}


def test_tvm_compile_moves_layers() -> None:
    """The same answer as ``tvm_ext.compile`` gives: integers of VTA, not those of the CPU."""
    pipeline = relax.get_pipeline("tvm_ext", calibration=samples())
    target = tvm.target.Target(TARGET)
    with target:
        executable = tvm.compile(network(), target, relax_pipeline=pipeline)
    x = samples()["x"][:1]
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    compiled = compile(network(), TARGET, calibration=samples())
    np.testing.assert_array_equal(found, next(iter(compiled.run([x]).values())))
    assert compiled.metadata["decisions"]["vta"]["regions"]
    assert any("layers run on VTA" in note for note in compiled.metadata["decisions"]["import"])


def test_missing_calibration_data_is_said_in_a_sentence() -> None:
    target = tvm.target.Target(TARGET)
    with target, pytest.raises(InputError, match=r"give calibration data \(--calibrate FILE, calibration= of") as error:
        tvm.compile(network(), target, relax_pipeline="tvm_ext")
    assert "\n" not in str(error.value)
    with pytest.raises(OptionError, match="calibration data is for VTA targets"):
        compile(network(), "llvm", calibration=samples())


def test_tuned_models_take_fewer_cycles(tmp_path: Path) -> None:
    target, config = tvm.target.Target(TARGET), load_config("sim")
    costs = costs_named("chisel")
    mod = Emitter().module((1, 32, 14, 14), residual_block)
    found = tune(mod, target, tmp_path, 96, recipe("random", batch=8, initial=8), batch=8)
    assert found.trials > 90
    assert all(kernel.best is not None and kernel.best <= kernel.before for kernel in found.kernels)
    assert any(kernel.best < kernel.before for kernel in found.kernels)
    again = tune(mod, target, tmp_path, 96, recipe("random", batch=8, initial=8), batch=8)
    assert (again.trials, again.resumed) == (0, found.trials)
    calibration = {"x": np.random.default_rng(1).standard_normal((2, 32, 14, 14)).astype(np.float32)}
    default, tuned = (offload(mod, config, costs, calibration, tuned=known) for known in (None, read_tuned(tmp_path)))
    assert any("have tuned schedules" in note for note in tuned.notes)
    counts = [
        sum(time_program(region.program.instructions, config, costs).cycles for region in model.regions)
        for model in (default, tuned)
    ]
    assert counts[1] < counts[0]
    x = calibration["x"][:1]
    answers = [
        next(iter(compile(mod, TARGET, calibration=calibration, **options).run([x]).values()))
        for options in ({}, {"work_dir": tmp_path})
    ]
    np.testing.assert_array_equal(*answers)


def test_damaged_files_of_tuned_schedules_are_refused(tmp_path: Path) -> None:
    assert read_tuned(tmp_path) == {}
    layer = {"order": next(iter(ORDERS)), "knobs": vars(ConvKnobs()), "cycles": 1, "trials": 1}
    knobs = [vars(ConvKnobs()) | changed for changed in ({"tile_ci": 9}, {"oc_nthread": 99999}, {"h_nthread": 9})]
    broken = [layer | {"cycles": True}, layer | {"trials": 0}, layer | {"order": "x"}, layer | {"knobs": {}}]
    broken += [layer | {"knobs": changed} for changed in knobs]
    key = json.dumps({"geometry": asdict(Conv2d(1, 2, 4, 8, 8, 3, padding=1))})
    (tmp_path / VTA_SCHEDULES).write_text(json.dumps({"format": 1, "layers": {key: layer}}))
    assert list(read_tuned(tmp_path)) == [key]
    for text in (
        "{",
        '{"format": 1, "layers": []}',
        *(json.dumps({"format": 1, "layers": {key: row}}) for row in broken),
        json.dumps({"format": 1, "layers": {json.dumps({"geometry": {"batches": 0}}): layer}}),
    ):
        (tmp_path / VTA_SCHEDULES).write_text(text)
        with pytest.raises(TuningError, match=rf"{VTA_SCHEDULES} is damaged .*; remove it and tune again"):
            read_tuned(tmp_path)


@pytest.mark.parametrize("tag", BOARDS)
def test_streams_for_boards_are_portable(tag: str) -> None:
    target = tvm.target.Target(tag)
    config = config_of_target(target)
    assert config.isa == (1 if tag.endswith("0.0.1") else 2)
    assert costs_of_config(config).name in ("pynq", "ultra96", "de10nano")
    mod = network(pooled)
    layers = read_graph(prepare(mod)[0]["main"], config.batch).layers
    forced = {layer.name: "vta" for layer in layers}
    model = offload(mod, config, costs_of_config(config), samples(), forced=forced)
    assert model.regions
    for region in model.regions:
        image = region.program.image
        assert lint(region.program.instructions, config, image.data, image.base) == []


def test_models_run_on_a_board(tmp_path: Path) -> None:
    """A device that simulates stands for the board; a board of another kind is refused."""
    x = samples()["x"][:1]
    compile(network(), "vta-pynq", calibration=samples()).save(tmp_path / "out")
    expected = load(tmp_path / "out").run([x])
    compiled = load(tmp_path / "out")
    compiled.instrument = runner = BoardRunner(Board(simulated_device(load_config("pynq"), 16 << 20)))
    found = compiled.run([x])
    assert runner.programs == len(compiled.metadata["decisions"]["vta"]["regions"]) > 0
    programs, compiled.instrument = runner.programs, None  # back to the simulator that is compiled in
    compiled.run([x])
    assert runner.programs == programs
    compiled.instrument = runner
    compiled.run([x])
    assert runner.programs == 2 * programs
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    other = load(tmp_path / "out")
    other.instrument = BoardRunner(Board(simulated_device(load_config("pynq_0.0.1"), 16 << 20)))
    with pytest.raises(VTADeviceError, match=r"compiled for VTA .*isa2, the board is .*isa1; compile it for the board"):
        other.run([x])
    with pytest.raises(OptionError, match=r"expected vta://HOST:PORT"):
        open_runner("pynq:9091")
