"""Run a pack of compiled cases on a GPU: whether they are right, and how long they take.

Run, on a machine with a GPU, nvcc and Python with numpy (and torch, to compare with):

    python3 scripts/cuda/runner.py PACK --out results.json

The pack is made by ``bench_cuda.py gpu --pack PACK`` on any machine; neither TVM nor this package is needed here.
Results are read by ``bench_cuda.py gpu --results results.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.cuda.driver import Device, DriverError
from scripts.cuda.torch_peers import peer_seconds

WARM_UP, REPEATS, ALONE = 5, 50, 20

FEATURES = {"sm_90": "a"}
"""Suffixes of architectures for code that only they run, ``wgmma`` among it."""

TOLERANCE = {"float16": 2e-2, "float32": 2e-3}
"""Of the largest number; tf32 and sums in another order are among what is compared."""


def compiled(
    pack: Path, cases: Sequence[dict[str, Any]], folder: Path, arch: str, nvcc: str, jobs: int
) -> dict[str, str]:
    """Compile the sources of cases, several at a time; gives what went wrong, by case."""

    def one(case: dict[str, Any]) -> tuple[str, str]:
        name = case["name"]
        command = [
            nvcc,
            "-w",
            "-cubin",
            f"-arch={arch}{FEATURES.get(arch, '')}",
            "-o",
            str(folder / f"{name}.cubin"),
            str(pack / f"{name}.cu"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            return name, f"nvcc did not run: {error}"
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no reason given"]
        return name, f"nvcc: {lines[0]}" if done.returncode else ""

    with ThreadPoolExecutor(jobs) as pool:
        return {name: fault for name, fault in pool.map(one, cases) if fault}


def filled(tensor: dict[str, Any], number: int) -> np.ndarray:
    """Draw the values of a tensor that is no result, the same for the same number."""
    rng, dtype = np.random.default_rng(number), np.dtype(tensor["dtype"])
    if dtype.kind == "b":
        return rng.integers(0, 2, tensor["shape"]).astype(bool)
    if dtype.kind in "iu":
        most = 2 if dtype.itemsize >= 4 else np.iinfo(dtype).max
        return rng.integers(0 if dtype.itemsize >= 4 else np.iinfo(dtype).min, most, tensor["shape"]).astype(dtype)
    return (rng.standard_normal(tensor["shape"], np.float32) * 0.1).astype(dtype)


def run_case(case: dict[str, Any], pack: Path, binary: Path, device: Any) -> dict[str, Any]:
    """Run a case: its results against those that are known, and its seconds."""
    known = np.load(pack / f"{case['name']}.npz") if case["checked"] else {}
    kernel = device.load(case["name"], binary)
    memories = []
    try:
        for number, tensor in enumerate(case["tensors"]):
            memory = device.allocate(int(np.prod(tensor["shape"], dtype=np.int64)) * np.dtype(tensor["dtype"]).itemsize)
            memories.append(memory)
            if tensor["given"]:
                key = f"given{number}"
                device.upload(memory, known[key] if key in known else filled(tensor, number))
        launches = [
            (
                kernel(launch["kernel"], launch["dynamic"]), launch["grid"], launch["threads"], launch["dynamic"],
                [memories[number] for number in launch["tensors"]],
            )
            for launch in case["launches"]
        ]  # fmt: skip

        def work() -> None:
            for launch in launches:
                device.launch(*launch)

        device.synchronize()
        work()
        device.synchronize()
        row = {"fault": _difference(case, known, memories, device), "launches": len(launches)}
        if device.measures:
            seconds = device.seconds(work, WARM_UP + REPEATS)[WARM_UP:]
            row |= {"seconds": statistics.median(seconds), "fastest": min(seconds)}
            if case.get("kind") == "model":
                row["kernels"] = _kernels([launch["kernel"] for launch in case["launches"]], launches, device)
        return row
    finally:
        for memory in memories:
            device.free(memory)


def _answers(device: Any) -> bool:
    """Whether the device is of use still: a kernel that failed leaves it unusable in this process."""
    try:
        device.synchronize()
    except DriverError:
        return False
    return True


def _kernels(names: Sequence[str], launches: Sequence[tuple[Any, ...]], device: Any) -> list[tuple[str, float]]:
    """List what each launch takes alone, with its memory in the caches; the longest first."""

    def seconds(launch: tuple[Any, ...]) -> float:
        def work() -> None:
            for _ in range(ALONE):
                device.launch(*launch)

        return statistics.median(device.seconds(work, 3)) / ALONE

    return sorted(zip(names, map(seconds, launches), strict=True), key=lambda pair: -pair[1])


def _difference(case: dict[str, Any], known: Any, memories: Sequence[Any], device: Any) -> str:
    for number in case["results"]:
        key = f"result{number}"
        if key not in known:
            continue
        wanted = known[key]
        got = device.download(memories[number], wanted.shape, str(wanted.dtype))
        if wanted.dtype.kind in "iub":
            # A number that is rounded may fall to either side.
            apart = int(np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max(initial=0))
            if apart > 1:
                return f"result {number} differs by {apart}"
            continue
        first, second = got.astype(np.float64), wanted.astype(np.float64)
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        scale = float(np.abs(second[np.isfinite(second)]).max(initial=1e-30))
        error = float(np.where(same, 0, np.abs(first - second)).max(initial=0.0)) / scale
        if not error <= TOLERANCE[case["tolerance"]]:
            return f"result {number} differs by {error:.1e} of the largest number"
    return ""


def run(pack: Path, device: Any, nvcc: str, jobs: int, seconds: float, peers: bool) -> dict[str, Any]:
    """Run all cases of a pack, and what they are compared with; a case that fails has a row with the reason."""
    described = json.loads((pack / "pack.json").read_text(encoding="utf-8"))
    began, rows = time.perf_counter(), []
    arch = device.arch if device.measures else described["arch"]
    with tempfile.TemporaryDirectory() as folder:
        faults = compiled(pack, described["cases"], Path(folder), arch, nvcc, jobs)
        print(f"compiled in {time.perf_counter() - began:.0f} s", flush=True)
        for case in described["cases"]:
            row = {name: case[name] for name in ("name", "kind", "about", "predicted")}
            if time.perf_counter() - began > seconds:
                row["fault"] = "not reached in the time there was"
            elif case["name"] in faults:
                row["fault"] = faults[case["name"]]
            else:
                try:
                    row |= run_case(case, pack, Path(folder) / f"{case['name']}.cubin", device)
                except Exception as error:
                    row["fault"] = f"{type(error).__name__}: {error}"
                    if isinstance(error, DriverError) and not _answers(device):
                        rows.append(row)
                        print(row, flush=True)
                        break
                    traceback.print_exc()
            rows.append(row)
            print(row, flush=True)
    left = max(0.0, seconds - (time.perf_counter() - began))
    return {
        "device": device.name, "driver": device.driver, "arch": arch, "rows": rows,
        "peers": peer_seconds(described["cases"], left, REPEATS) if peers else [],
    }  # fmt: skip


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=480, help="begin nothing new after so many")
    parser.add_argument("--no-peers", action="store_true", help="leave PyTorch out")
    arguments = parser.parse_args()
    if not (arguments.pack / "pack.json").exists():
        print(
            f"{arguments.pack} is no pack: it has no pack.json; make one by bench_cuda.py gpu --pack", file=sys.stderr
        )
        return 1
    try:
        device = Device()
    except DriverError as error:
        print(error, file=sys.stderr)
        return 1
    found = run(arguments.pack, device, arguments.nvcc, arguments.jobs, arguments.seconds, not arguments.no_peers)
    arguments.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
