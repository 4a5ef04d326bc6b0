"""Compare the package with an earlier commit of it: answers bit for bit, latency, and seconds of compilation.

Both versions are installed from their commits into folders of their own, and each compiles in processes of its own.
Latencies are of the default options of each version, measured in turns: while one process runs the other one waits.
Answers are compared with ``memory="stock"`` in both, as the default of ``memory`` changed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
VERSION = Path(__file__).with_name("version.py")
TURN_SECONDS = 0.15
"""How long a version runs before it is the other one's turn; two runs at least."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--before", default="e06ca6f", metavar="COMMIT", help="what to compare with (%(default)s)")
    parser.add_argument("--only", metavar="NAME", nargs="*", help="models of these names")
    parser.add_argument("--turns", type=int, default=15, help="of each version (%(default)s)")
    parser.add_argument("--minutes", type=float, help="begin no further model then; those of small files come first")
    parser.add_argument("--log", type=Path, help="keeps the rows, line by line; those in it are not measured again")


class Version:
    """A process that compiles and runs with one version of the package.

    Parameters
    ----------
    site : path
        Folder where the package of that version is installed.
    """

    def __init__(self, site: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(VERSION)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": str(site), "PYTHONHASHSEED": "0"},
        )
        package = self._answer()["package"]
        if not Path(package).is_relative_to(site):
            raise RuntimeError(f"the package in {package} would be measured, instead of that in {site}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order and wait for the answer; a version that died answers with an empty mapping."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
        except BrokenPipeError:
            return {}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return answer


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compare every model; gives a row for each."""
    from scripts.trust.unchanged import by_size
    from tests.zoo import ZOO

    end = float("inf") if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    known = arguments.log.read_text("utf-8").splitlines() if arguments.log and arguments.log.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in known]
    done = {row["model"] for row in rows}
    with tempfile.TemporaryDirectory(prefix="tvm-ext-before-") as name:
        folder = Path(name)
        sites = {"before": _install(arguments.before, folder / "before"), "after": _install("HEAD", folder / "after")}
        for model in by_size():
            if time.monotonic() > end:
                break
            if model in done or (arguments.only and model not in arguments.only):
                continue
            inputs = folder / "inputs.npz"
            np.savez(inputs, **ZOO[model].inputs(0))
            path = str(ZOO[model].onnx_path())
            row = {"model": model} | _compared(sites, path, inputs, arguments.turns, is_turned=len(rows) % 2 == 1)
            print(json.dumps(row), flush=True)
            rows.append(row)
            if arguments.log:
                with arguments.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(row) + "\n")
    return rows, summarised(rows)


def summarised(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Join the rows: geometric means of ratios, and how many models changed."""
    timed = [row for row in rows if row["state"] != "failed"]
    vs_before = [row["after_ms"] / row["before_ms"] for row in timed]
    compiling = [row["after_seconds"] / row["before_seconds"] for row in timed]
    return {
        "before_models": len(timed),
        "before_bits_wrong": sum(row["state"] == "differs" for row in rows),
        "before_failed_wrong": sum(row["state"] == "failed" for row in rows),
        "vs_before": round(geometric_mean(vs_before), 4),
        "vs_before_worst": round(max(vs_before), 4),
        "compile_seconds_vs_before": round(geometric_mean(compiling), 4),
        "compile_seconds_vs_before_worst": round(max(compiling), 4),
        "compile_seconds_vs_before_of_all": round(
            sum(row["after_seconds"] for row in timed) / sum(row["before_seconds"] for row in timed), 4
        ),
    }


def _install(commit: str, folder: Path) -> Path:
    """Install the package of a commit, without what it depends on; gives the folder to import from."""
    source, site = folder / "source", folder / "site"
    source.mkdir(parents=True)
    with (
        subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE) as archive,
        tarfile.open(fileobj=archive.stdout, mode="r|") as files,
    ):
        files.extractall(source, filter="data")
    if archive.returncode:
        raise RuntimeError(f"git has no commit '{commit}'; give one of this repository to --before")
    command = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run([sys.executable, "-m", *command], check=True)
    return site


def _compared(sites: dict[str, Path], model: str, inputs: Path, turns: int, is_turned: bool) -> dict[str, Any]:
    stock: dict[str, Any] = {"compile": model, "inputs": str(inputs), "options": {"memory": "stock"}}
    order = list(sites)[::-1] if is_turned else list(sites)
    answers = {}
    for name in order:
        with Version(sites[name]) as version:
            answers[name] = version.ask(stock)
    if not all(answers.values()):
        return {"state": "failed", "at": [name for name in order if not answers[name]]}
    state = "same" if answers["before"]["outputs"] == answers["after"]["outputs"] else "differs"
    row: dict[str, Any] = {"state": state}
    with Version(sites["before"]) as before, Version(sites["after"]) as after:
        versions = {"before": before, "after": after}
        for name in order:
            answer = versions[name].ask(stock | {"options": {}})
            if not answer:
                return row | {"state": "failed", "at": [name]}
            row[f"{name}_seconds"] = round(answer["seconds"], 3)
            row[f"{name}_processor_seconds"] = round(answer["processor_seconds"], 3)
        once = after.ask({"run": 3})["seconds"][-1]
        runs = max(2, int(TURN_SECONDS / once))
        times: dict[str, list[float]] = {name: [] for name in versions}
        for turn in range(turns):
            for name in order if turn % 2 else order[::-1]:
                # The first run of a turn warms the caches up.
                times[name] += versions[name].ask({"run": runs + 1})["seconds"][1:]
    return row | {f"{name}_ms": round(1e3 * median(values), 4) for name, values in times.items()}
