"""What measures on a GPU, without one: the driver's calls on a library in its place, kernels on the emulator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.cuda import cases
from scripts.cuda.driver import Device, DriverError
from scripts.cuda.emulated_device import EmulatedDevice
from scripts.cuda.gpu import summarized
from scripts.cuda.kernels import target_of
from scripts.cuda.pack import Case, write_pack
from scripts.cuda.runner import run, run_case

ARCH = "sm_90"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Device:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return Device(str(library))


@pytest.fixture
def nvcc(tmp_path: Path) -> str:
    """Something that writes a file in the place of the compiler."""
    script = tmp_path / "nvcc"
    script.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf code > "$2"\n')
    script.chmod(0o755)
    return str(script)


def emulated(made: list[Case], folder: Path, nvcc: str) -> list[dict]:
    write_pack(folder, made, ARCH)
    device = EmulatedDevice(target_of(ARCH), {case.name: case.lowered for case in made})
    return run(folder, device, nvcc, 1, 1e9, peers=False)["rows"]


def test_the_driver(driver: Device, tmp_path: Path) -> None:
    assert (driver.name, driver.driver, driver.arch) == ("no GPU", "13.0", "sm_90")
    values = np.arange(64, dtype="float32")
    np.savez(tmp_path / "twice.npz", given0=values, result1=values * 2)
    (tmp_path / "code").write_bytes(b"code\0")
    launch = {"kernel": "twice", "grid": [2, 1, 1], "threads": [32, 1, 1], "dynamic": 0, "tensors": [0, 1]}
    tensors = [{"shape": [64], "dtype": "float32", "given": given} for given in (True, False)]
    case = {
        "name": "twice", "checked": True, "tensors": tensors, "launches": [launch], "results": [1],
        "tolerance": "float32",
    }  # fmt: skip
    row = run_case(case, tmp_path, tmp_path / "code", driver)
    assert row["fault"] == ""
    assert row["launches"] == 1
    assert 0 < row["fastest"] <= row["seconds"]
    np.savez(tmp_path / "twice.npz", given0=values, result1=values * 3)
    assert "result 1 differs by" in run_case(case, tmp_path, tmp_path / "code", driver)["fault"]


def test_what_the_driver_refuses(driver: Device, tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        driver.allocate(1 << 41)
    (tmp_path / "code").write_bytes(b"code\0")
    with pytest.raises(DriverError, match="cuModuleGetFunction failed"):
        driver.load("case", tmp_path / "code")("thrice", 0)
    with pytest.raises(DriverError, match="there is no NVIDIA driver"):
        Device("libno-such-driver.so.1")


def test_a_model_and_a_divided_product(tmp_path: Path, nvcc: str) -> None:
    """From the pack on the way is that of a GPU, but for the device; weights and results of the model travel."""
    made = [cases.whole_model_case(ARCH, "tiny_mlp"), *cases.rank_cases(ARCH, ((33, 17, 512),))]
    rows = emulated(made, tmp_path / "pack", nvcc)
    assert not [row for row in rows if row["fault"]]
    assert max(row["launches"] for row in rows if row["kind"] == "rank") == 2  # and what lies between is allocated
    described = json.loads((tmp_path / "pack" / "pack.json").read_text())
    assert described["cases"][0]["checked"]
    assert "__global__" in (tmp_path / "pack" / "whole-tiny_mlp.cu").read_text()


def test_wrong_results_are_seen(tmp_path: Path, nvcc: str) -> None:
    case = cases.whole_model_case(ARCH, "tiny_mlp")
    changed = {number: array + 1 for number, array in case.results.items() if array is not None}
    wrong = Case(
        case.name, case.kind, case.about, case.functions, case.calls, case.tensors, case.given, changed,
    )  # fmt: skip
    (row,) = emulated([wrong], tmp_path / "pack", nvcc)
    assert "differs by" in row["fault"]


def test_a_compiler_that_fails_is_a_row(tmp_path: Path) -> None:
    (row, *_) = emulated([*cases.product_cases(ARCH, (32,))], tmp_path / "pack", "/no/such/nvcc")
    assert row["fault"].startswith("nvcc did not run")


def test_the_runner_needs_neither_tvm_nor_this_package(tmp_path: Path) -> None:
    """It is loaded with both of them out of reach, and says that there is no driver, or no pack."""
    blocked = "import sys; sys.modules.update(tvm=None, tvm_ext=None); sys.argv = ['runner', 'none', '--out', 'o']; "
    code = blocked + "from scripts.cuda.runner import main; raise SystemExit(main())"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 1
    assert "there is no NVIDIA driver" in done.stderr or "pack.json" in done.stderr


def test_the_figures() -> None:
    def row(name: str, kind: str, about: dict, seconds: float, predicted: float | None = None, fault: str = "") -> dict:
        return {
            "name": name, "kind": kind, "about": about, "seconds": seconds, "predicted": predicted, "fault": fault,
        }  # fmt: skip

    rows = [
        row("check-a", "check", {}, 1e-6),
        row("check-b", "check", {}, 1e-6, fault="result 0 differs"),
        row("gemm-64", "gemm", {}, 2e-3),
        row("attention-64", "attention", {}, 3e-3),
        row("memory-add", "memory", {"bytes": 1 << 30}, 2e-3),
        *(row(f"rank-1x1x1-{n}", "rank", {}, [1, 2, 4, 3][n] * 1e-3, n + 1.0) for n in range(4)),
        row("model-m-tvm_ext", "model", {"model": "m"}, 1e-3),
        row("model-m-dlight", "model", {"model": "m"}, 4e-3),
    ]
    peers = [
        {"name": "copy", "peer": "torch", "seconds": 2e-3},
        {"name": "gemm-64", "peer": "cublas", "seconds": 1e-3},
        {"name": "attention-64", "peer": "sdpa", "seconds": 2e-3},
        {"name": "m", "peer": "eager", "fault": "RuntimeError"},
        {"name": "m", "peer": "torch.compile", "seconds": 0.8e-3},
    ]
    assert summarized({"rows": rows, "peers": peers}) == {
        "gpu_checked": 2, "gpu_right": 0.5, "gpu_faults": 1, "gemm_peak_share": 0.5, "attention_vs_sdpa": 1.5,
        "memory_bound_share": 0.5, "model_rank": 0.667, "vs_dlight": 0.25, "vs_torch_compile": 1.25,
        "vs_best_peer": 1.25,
    }  # fmt: skip
    assert set(summarized({"rows": rows[:2], "peers": []})) == {"gpu_checked", "gpu_right", "gpu_faults"}
