"""Compile every model of the zoo three times in fresh processes, once under load, and compare the libraries.

The three processes have different seeds of Python's hashes, and different addresses as every process has; beside the
last one two processes keep the processor busy. What is compared is the library that ``save`` writes, byte for byte:
code, constants and instructions of the virtual machine, as linked. (It has no build id, and the linker stores no path.)
Each model is compiled with the default options and with every planner at work: memory, rewriting and fusion.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "planners": {"memory": "optimal", "rewrite": "fast", "fuse": "mapping-type"},
}
COMPILATIONS = 3
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1000000))"
SECONDS = 1200.0
"""A compilation that takes longer is said to differ: nobody knows what it would give."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--minutes", type=float, help="begin no further model then; those of small files come first")
    parser.add_argument("--log", type=Path, help="keeps the rows, line by line; those in it are not measured again")
    parser.add_argument("--options", choices=OPTIONS, action="append", help="sets of options to measure; all of them")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compile the zoo; gives a row for each model and set of options, and the share of models that never differ."""
    end = float("inf") if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    known = arguments.log.read_text("utf-8").splitlines() if arguments.log and arguments.log.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in known]
    done = {(row["model"], row["options"]) for row in rows}
    for name in by_size():
        if time.monotonic() > end:
            break
        for label, options in OPTIONS.items():
            if (name, label) in done or label not in (arguments.options or OPTIONS):
                continue
            row = {"model": name, "options": label} | compared(name, options)
            print(json.dumps(row), flush=True)
            rows.append(row)
            if arguments.log:
                with arguments.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(row) + "\n")
    models = {row["model"] for row in rows}
    changed = {row["model"] for row in rows if row["state"] == "differs"}
    refused = {row["model"] for row in rows if row["state"] == "refused"}
    compiled = models - refused
    return rows, {
        "unchanged_code": len(compiled - changed) / max(1, len(compiled)),
        "unchanged_models": len(compiled),
        "unchanged_compilations": sum(row["compilations"] for row in rows),
        **{f"unchanged_{label}": sum(row["options"] == label for row in rows) for label in OPTIONS},
    }


def by_size() -> list[str]:
    """List the models that can be had here, those whose file is small first."""
    from tests.zoo import ZOO

    entries = [entry for entry in ZOO.values() if entry.missing() is None]
    return [entry.name for entry in sorted(entries, key=lambda entry: entry.onnx_path().stat().st_size)]


def compared(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Compile a model in fresh processes and compare what they write."""
    found: list[dict[str, Any]] = []
    for number in range(COMPILATIONS):
        under_load = number == COMPILATIONS - 1
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 if under_load else 0)]
        try:
            found.append(_compiled(name, options, 1000 + 17 * number))
        finally:
            for process in busy:
                process.kill()
                process.wait()
        if found[-1] != found[0] and found[-1].get("parts") == found[0].get("parts"):
            break  # one more says nothing new
    parts = [one.pop("parts", {}) for one in found]
    seconds = [one.pop("seconds", 0.0) for one in found]
    row = {"compilations": len(found), "seconds": round(max(seconds), 1)}
    if all("refused" in one for one in found):
        return row | {"state": "refused", "reason": found[0]["refused"]}
    if all(one == found[0] for one in found):
        return row | {"state": "same", "bytes": found[0]["bytes"]}
    keys = sorted({key for part in parts for key in part})
    return row | {"state": "differs", "parts": [key for key in keys if len({part.get(key) for part in parts}) > 1]}


def _compiled(name: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__)), name, json.dumps(options)]
    paths = [os.environ.get("PYTHONPATH"), str(ROOT)]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"refused": f"took longer than {SECONDS:.0f} s", "seconds": SECONDS}
    if done.returncode:
        return {"refused": (done.stderr.strip().splitlines() or ["no word"])[-1], "seconds": time.monotonic() - start}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer | {"seconds": time.monotonic() - start}


def _main(name: str, options: dict[str, Any]) -> None:
    """Compile a model, write it, and print the hashes of what was written; in a process of its own."""
    import tvm_ext
    from tests.zoo import ZOO
    from tvm_ext.artifact.compiled_model import LIBRARY
    from tvm_ext.artifact.shared_object import host_modules

    entry = ZOO[name]
    shapes = {key: array.shape for key, array in entry.inputs(0).items()}
    compiled = tvm_ext.compile(entry.onnx_model(), input_shapes=shapes, **options)
    with tempfile.TemporaryDirectory(prefix="tvm-ext-unchanged-") as folder:
        library = compiled.save(Path(folder, "artifact")) / LIBRARY
        with library.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = library.stat().st_size
    # Where libraries differ these say in what.
    parts = {"bytecode": _digest(compiled.executable.as_text())}
    for number, part in enumerate(host_modules(compiled.executable.mod)):
        if part.kind == "llvm":
            parts[f"code{number}"] = _digest(part.inspect_source("ll"))
    print(json.dumps({"library": digest, "bytes": size, "parts": parts}))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
