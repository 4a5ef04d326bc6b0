"""Models on VTA from the command line."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.commands import Commands
from tests.vta.model.test_offload import save_onnx
from tvm_ext.artifact.compiled_model import load

TARGET = "tvm-ext/vta-1x16x16"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One convolution, and beside it inputs to calibrate on."""
    folder = tmp_path_factory.mktemp("model")
    samples = np.random.default_rng(0).standard_normal((2, 16, 24, 24)).astype(np.float32)
    np.save(folder / "samples.npy", samples)
    np.save(folder / "x.npy", samples[:1])
    np.savez(folder / "picture.npz", picture=samples)
    return save_onnx(folder / "m.onnx")


@pytest.mark.slow
def test_compile_and_run(commands: Commands, model: Path, tmp_path: Path) -> None:
    samples = model.parent / "samples.npy"
    result = commands("compile", model, "--target", TARGET, "--calibrate", samples, "-o", tmp_path / "out")
    assert (result.code, result.stderr) == (0, "")
    assert "1 of 1 layers run on VTA, in 1 region\n" in result.stdout
    x = np.load(model.parent / "x.npy")
    found = load(tmp_path / "out").run({"image": x})["y"]
    output = tmp_path / "y.npz"
    result = commands("vta", "run", model, "--input", model.parent / "x.npy", "--calibrate", samples, "-o", output)
    assert (result.code, result.stderr) == (0, "")
    share = re.search(r"same answer as in floats: ([0-9.]+)%", result.stdout)
    assert share is not None
    assert float(share[1]) > 50  # of the rows of a picture, hardly all of which agree
    assert "of roofline" in commands("vta", "profile", model).stdout
    assert f"{(3 * 24 - 2) ** 2 + 24 * 24} steps of the matrix unit" in result.stdout
    np.testing.assert_array_equal(np.load(output)["y"], found)


@pytest.mark.slow
def test_run_calibrates_on_its_inputs(commands: Commands, model: Path) -> None:
    result = commands("vta", "run", model, "--json")
    assert (result.code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert [row["name"] for row in found["accuracy"]["layers"]] == ["gv"]
    assert found["accuracy"]["outputs"][0]["signal_to_noise"] > 25


def test_profile(commands: Commands, model: Path) -> None:
    result = commands("vta", "profile", model, "--json", "--costs", "pynq")
    assert (result.code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    row = found["layers"][0]
    assert found["cycles"] == row["cycles"] == found["region_cycles"][0]
    assert row["steps"] == (3 * 24 - 2) ** 2  # those on padding are left out
    assert row["bytes_written"] == 24 * 24 * 16
    assert 0.4 < row["occupancy"] < 1
    assert row["occupancy"] <= row["roofline"] <= 1
    assert found["decisions"][0]["device"] == "vta"


def test_errors(commands: Commands, model: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out")
    commands("compile", model, "--target", TARGET, *out).error(5, "tensor 'gv'", "--calibrate")
    picture = ("--calibrate", model.parent / "picture.npz")
    commands("compile", model, "--target", TARGET, *picture, *out).error(5, "'picture'", "image")
    for command, target in itertools.product(("run", "profile"), ("llvm", "hexagon-v67", "cuda", "nonsense")):
        result = commands("vta", command, model.parent / "gone.onnx", "--target", target)
        result.error(6, f"target '{target}' is not a VTA; use one of the tags {TARGET}, ")
    commands("vta", "profile", model, "--costs", "none").error(2, "no cycle costs named 'none'")
    commands("compile", model, "--calibrate", model.parent / "samples.npy", *out).error(2, "VTA targets")


def test_c_sources_are_refused_at_once(commands: Commands, model: Path, tmp_path: Path) -> None:
    given = ("compile", model, "--target", TARGET, "--emit", "c", "-o", tmp_path / "out")
    commands(*given).error(2, "'c' cannot be made for target vta", "candidates are library")
