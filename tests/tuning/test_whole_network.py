"""The search over whole networks: what it keeps is measured, gone on with, and followed by compilations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.layout.test_choices import network
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.cli.main import main
from tvm_ext.database.folders import open_database
from tvm_ext.errors import OptionError, TargetError, TuningError
from tvm_ext.layout.choices import CHOICES, read_choices, write_choices
from tvm_ext.options import PipelineOptions
from tvm_ext.target import resolve_target
from tvm_ext.tuning import whole_network
from tvm_ext.tuning.joint_choices import Trial
from tvm_ext.tuning.whole_network import TRIED, network_offers, tune_network


@pytest.fixture(scope="module")
def imported():
    return tvm_ext.import_model(network(16, 14))


def test_a_search_goes_on_where_it_was(imported, tmp_path: Path) -> None:
    first = tune_network(imported, native_target(), tmp_path, 2, seconds=0.01)
    assert len(first.trials) == 2
    assert first.resumed == 0
    assert all(trial.ratio is not None and trial.ratio > 0 for trial in first.trials)
    with (tmp_path / TRIED).open("a") as file:
        file.write('{"network": "cut')
    again = tune_network(imported, native_target(), tmp_path, 3, seconds=0.01)
    assert again.resumed == 2
    assert again.trials[:2] == first.trials
    assert len(again.trials) == 3


def test_what_is_faster_is_kept_and_followed(imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(self, rows, seconds):
        counts = [(list(row.values()).count("rows"), len(row)) for row in rows]
        return [Trial(dict(row), 0.9**by * 1.1 ** (all_ - by)) for row, (by, all_) in zip(rows, counts, strict=True)]

    monkeypatch.setattr(whole_network._Networks, "compare", compare)
    write_choices(tmp_path, {"of another model": "x"})
    found = tune_network(imported, native_target(), tmp_path, 100)
    alike = [offer for offer in found.offers if "rows" in offer.options and offer.default != "rows"]
    assert alike
    assert found.ratio == pytest.approx(0.9 ** len(alike))
    assert found.chosen == {offer.key: "rows" for offer in alike}
    assert read_choices(tmp_path) == {"of another model": "x", **found.chosen}
    compiled = tvm_ext.compile(imported, work_dir=tmp_path)
    forms = [row["form"] for row in compiled.metadata["decisions"]["layout"] if row["operator"] == "nn.conv2d"]
    assert set(forms) == {"rows"}
    data = [np.ones((1, 16, 14, 14), "float32")]
    for one, other in zip(compiled.run(data).values(), tvm_ext.compile(imported).run(data).values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_nothing_faster_leaves_the_default(imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(self, rows, seconds):
        return [Trial(dict(row), 0.97 if len(row) == 1 and seconds < 2 else 1.0) for row in rows]

    monkeypatch.setattr(whole_network._Networks, "compare", compare)
    found = tune_network(imported, native_target(), tmp_path, 100)
    assert found.finals
    assert found.chosen == {}
    assert found.ratio == 1.0
    assert not (tmp_path / CHOICES).exists()


def test_a_network_that_computes_something_else_is_left_out(imported, tmp_path: Path, monkeypatch) -> None:
    networks = whole_network._Networks(
        imported, native_target(), _begun(tmp_path), PipelineOptions(), {}, None, whole_network.time.perf_counter, 0.01
    )
    networks._expected = {name: array + 1.0 for name, array in networks._expected.items()}
    trial = networks.measure({"option prologues": "off"})
    assert trial.ratio is None
    assert "differs by" in trial.reason


def _begun(folder: Path) -> Path:
    open_database(folder)
    return folder


def test_bad_input(imported, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="variants is -1"):
        tune_network(imported, native_target(), tmp_path, -1)
    for target in ({"kind": "cuda", "arch": "sm_80"}, "tvm-ext/vta-1x16x16"):
        with pytest.raises(TargetError, match="measured on CPUs"):
            network_offers(imported.mod, resolve_target(target), PipelineOptions())
    spec = replace(imported.inputs[0], shape=("n", 16, 14, 14))
    with pytest.raises(OptionError, match="fixed extents"):
        tune_network(replace(imported, inputs=(spec,)), native_target(), tmp_path, 1)
    (tmp_path / CHOICES).write_text("{")
    with pytest.raises(TuningError, match=r"choices\.json"):
        tune_network(imported, native_target(), tmp_path, 1)


def exit_code(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


def test_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(get("tiny_cnn").onnx_model(), model)
    arguments = ["tune", str(model), "--work-dir", str(tmp_path / "db"), "--trials", "0"]
    assert exit_code(arguments) == 2
    assert "--graph" in capfd.readouterr().err
    assert not exit_code([*arguments, "--graph", "--variants", "1", "--json", "-o", str(tmp_path / "out")])
    network = json.loads(capfd.readouterr().out)["network"]
    assert len(network["trials"]) == 1
    assert network["offers"]
    assert (tmp_path / "out" / "metadata.json").exists()
