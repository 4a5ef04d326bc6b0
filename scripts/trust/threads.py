"""Run compiled models from many threads at once and compare every result, bit by bit, with that of a single thread."""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_ext
from tests.modules import Branch, Dynamic, convolutions
from tests.zoo import get
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.inputs import random_inputs
from tvm_ext.system.threads import use_all_cores

MODELS = ("squeezenet", "mobilenet_v2", "ppocr_rec", "silero_vad", "shufflenet")
"""Of the zoo: networks of convolutions, a recurrent one, and one with attention."""

SMALL = {"branch": Branch, "convolutions": convolutions(4), "open batch": Dynamic}
INPUTS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10_000, help="of all threads and models together")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; half of the threads use ``CompiledModel.run``, half of them a virtual machine of their own."""
    models = {name: tvm_ext.compile(mod) for name, mod in SMALL.items()}
    for name in MODELS:
        if not get(name).missing():
            shapes = {key: value.shape for key, value in get(name).inputs().items()}
            models[name] = tvm_ext.compile(get(name).onnx_path(), input_shapes=shapes)
    # Small models take a thousandth of the time of the others: they get nine tenths of the runs.
    large = [name for name in models if name not in SMALL]
    shares = {name: 0.9 / len(SMALL) if name in SMALL else 0.1 / len(large) for name in models}
    rows = []
    for name, model in models.items():
        runs = max(2 * arguments.threads, int(np.ceil(arguments.runs * shares[name])))
        start = time.perf_counter()
        faults = _run(model, arguments.threads, runs)
        seconds = time.perf_counter() - start
        rows.append({"model": name, "runs": runs, "faults": len(faults), "seconds": seconds})
        print(f"{name:14} {runs:6} runs {seconds:7.1f} s, {len(faults)} faults {faults[:1]}", flush=True)
    return rows, {
        "run_threads": arguments.threads,
        "thread_runs": sum(row["runs"] for row in rows),
        "thread_models": len(rows),
        "thread_faults": sum(row["faults"] for row in rows),
    }


def _run(model: CompiledModel, threads: int, runs: int) -> list[str]:
    """Share ``runs`` out among threads; say what differed from a single thread, or failed."""
    given = [random_inputs(model.inputs, seed, {"n": 3 + seed}) for seed in range(INPUTS)]
    alone = [[value.tobytes() for value in model.run(arrays).values()] for arrays in given]
    faults: list[str] = []
    started = threading.Barrier(threads)

    def work(number: int) -> None:
        try:
            started.wait()
            use_all_cores()
            own = relax.VirtualMachine(model.executable, model.device)["main"] if number % 2 else None
            for step in range(number, runs, threads):
                which = (number + step // threads) % INPUTS
                if own is None:
                    found = list(model.run(given[which]).values())
                else:
                    found = [value.numpy() for value in _tensors(own(*map(tvm.runtime.tensor, given[which].values())))]
                if [value.tobytes() for value in found] != alone[which]:
                    faults.append(f"thread {number}, step {step}: another result")
        except Exception as error:
            faults.append(f"thread {number}: {error!r}"[:300])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return faults


def _tensors(value: Any) -> list[Any]:
    return [value] if hasattr(value, "numpy") else [tensor for item in value for tensor in _tensors(item)]
