"""Measure random schedules of kernels in TVM's own design space, and train the cost model for loop nests on them.

Run: python scripts/pretrain_loops.py measure --keep FILE [--turns N] [--seed N]
     python scripts/pretrain_loops.py train FILE [-o ARTEFACT] [--without NAME ...] [--check]

``measure`` goes over the kernels again and again, one random candidate each turn, compiled and timed by the processor
time of one thread in a process of its own; what does not compile within five seconds of it counts as not working. A
line of the file is kernel, sketch, choices and seconds. ``train`` schedules them again, and adds the trees to the
artefact. The kernels are layers of AlexNet, VGG-16, SqueezeNet, MobileNet, Inception, ResNet-50 and of transformers;
none is one of ResNet-18, on which searches are compared.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["TVM_NUM_THREADS"] = "1"

import numpy as np
import tvm
from tvm import relax

from scripts.results import add_row, read_rows
from scripts.stock_space import one_core_target
from tvm_ext.errors import TuningError
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.measure.code import build
from tvm_ext.tuners.measure.measurer import arguments_of
from tvm_ext.tuners.metaschedule.loop_nests import LoopNestSpaces
from tvm_ext.tuners.pretrained.artefact import LOOP_NESTS, Pretrained
from tvm_ext.tuners.pretrained.loop_nests import LoopNestModel
from tvm_ext.tuners.replay.tasks import TASKS
from tvm_ext.tuners.shared_model import Examples

ARTEFACT = ROOT / "tuners/pretrained/cpu_kernels.npz"
COMPILING = 5
"""Seconds of the processor that compiling and timing a candidate may take."""

SLOW = 0.05
"""Kernels that take longer (seconds) are run twice, others three times for eight milliseconds."""

# Channels in and out, size of the image and of the kernel; stride, padding and groups where they are not 1, half, 1.
CONVOLUTIONS: tuple[tuple[int, ...], ...] = (
    *((task.inputs, task.outputs, task.size, task.kernel, task.stride, task.padding)
      for task in TASKS if task.network != "resnet18"),
    (3, 32, 96, 3, 2), (16, 64, 55, 1), (64, 16, 55, 1), (64, 256, 13, 1), (48, 192, 13, 1), (48, 192, 13, 3),
    (32, 32, 27, 3), (192, 64, 28, 1), (96, 128, 28, 3), (16, 32, 28, 5), (512, 128, 14, 1), (160, 320, 14, 3),
    (320, 1280, 7, 1), (96, 24, 56, 1), (144, 32, 28, 1), (128, 128, 28, 3, 2), (256, 64, 56, 1), (128, 512, 28, 1),
    (32, 64, 112, 1), (24, 32, 40, 7, 2), (64, 96, 30, 1, 2), (320, 384, 8, 3), (96, 160, 17, 3), (192, 384, 9, 3),
    (32, 32, 112, 3, 1, 1, 32), (96, 96, 56, 3, 2, 1, 96), (192, 192, 28, 3, 1, 1, 192), (576, 576, 14, 3, 1, 1, 576),
)  # fmt: skip
# Rows, depth, columns, and how many products there are.
PRODUCTS: tuple[tuple[int, ...], ...] = (
    (128, 312, 312), (128, 312, 1200), (1, 1280, 1000), (64, 384, 1536), (196, 192, 576), (128, 64, 128, 12),
    (17, 256, 256),
)  # fmt: skip


def convolution(inputs: int, outputs: int, size: int, kernel: int, stride: int = 1, padding: int = -1, groups: int = 1):
    """Make the model of a convolution with ReLU (padding of half the kernel if left out)."""
    weights = relax.const(np.ones((outputs, inputs // groups, kernel, kernel), np.float32))
    half = kernel // 2 if padding < 0 else padding
    return _module(
        (1, inputs, size, size),
        lambda data: relax.op.nn.relu(relax.op.nn.conv2d(data, weights, strides=stride, padding=half, groups=groups)),
    )


def product(rows: int, depth: int, columns: int, batch: int = 0):
    """Make the model of a product of a matrix, or of a batch of them, and a constant."""
    outer = (batch,) if batch else ()
    weights = relax.const(np.ones((*outer, depth, columns), np.float32))
    return _module((*outer, rows, depth), lambda data: relax.op.matmul(data, weights))


def _module(shape: tuple[int, ...], body: Callable[[relax.Var], relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(shape, "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(body(data)))
        builder.emit_func_output(output)
    return builder.finalize()


def kernels() -> dict[str, Callable[[], tvm.IRModule]]:
    """Name the kernels that are measured."""
    named: dict[str, Callable[[], tvm.IRModule]] = {}
    for make, shapes in ((convolution, CONVOLUTIONS), (product, PRODUCTS)):
        for shape in shapes:
            named["_".join(map(str, (make.__name__, *shape)))] = lambda make=make, shape=shape: make(*shape)
    return named


def measure(keep: Path, turns: int, seed: int) -> None:
    """Measure one random candidate of every kernel, so many times; lines are added to the file."""
    rng = np.random.default_rng(seed)
    spaces: dict[str, LoopNestSpaces] = {}
    best: dict[str, float] = {}
    for turn in range(turns):
        for name, make in kernels().items():
            if name not in spaces:
                spaces[name] = LoopNestSpaces(make(), one_core_target())
            sketch, vector, schedule = spaces[name].random(rng)
            seconds = apart(partial(_timed, schedule.mod, best.get(name)), COMPILING)
            if seconds is not None:
                best[name] = min(seconds, best.get(name, seconds))
            add_row(keep, {"kernel": name, "sketch": sketch, "choices": list(vector), "seconds": seconds})
        print(f"turn {turn + 1} of {turns}", flush=True)


def apart(timed: Callable[[], float], seconds: int) -> float | None:
    """Compile and time in a process of its own, which may take so many seconds of the processor and no more."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            os.write(writing, repr(timed()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return float(said) if said else None


def _timed(mod: tvm.IRModule, best: float | None) -> float:
    function = build(mod, one_core_target())["main"]
    rng = np.random.default_rng(0)
    tensors = [tvm.runtime.tensor((rng.random(shape) + 0.5).astype(dtype)) for shape, dtype in arguments_of(mod)]

    def run(times: int) -> float:
        start = time.thread_time()
        for _ in range(times):
            function(*tensors)
        return (time.thread_time() - start) / times

    run(1)
    once = run(1)
    if once > SLOW or (best is not None and once > 4 * best):
        return once
    return float(np.median([run(max(1, int(0.008 / max(once, 1e-7)))) for _ in range(3)]))


def examples(rows: list[dict[str, Any]], without: list[str]) -> Iterator[tuple[str, Examples]]:
    """Give features and scores of each kernel, of those whose name begins with none of ``without``."""
    for name, make in kernels().items():
        found = [row for row in rows if row["kernel"] == name and not name.startswith(tuple(without))]
        if not found:
            continue
        spaces = LoopNestSpaces(make(), one_core_target())
        features = [spaces.features(row["sketch"], tuple(row["choices"])) for row in found]
        scores = [0.0 if row["seconds"] is None else 1 / row["seconds"] for row in found]
        pairs = [(row, score) for row, score in zip(features, scores, strict=True) if row is not None]
        if pairs:
            yield name, (np.array([row for row, _ in pairs]), np.array([score for _, score in pairs]))


def train(rows: list[dict[str, Any]], output: Path, without: list[str]) -> None:
    """Train on all kernels, and write the artefact with what else it holds."""
    found = list(examples(rows, without))
    if not any((scores > 0).any() for _, (_, scores) in found):
        raise SystemExit("the file has no measurement of a kernel that is left and works: measure some first")
    count = sum(len(scores) for _, (_, scores) in found)
    trees = LoopNestModel(**SETTINGS).train([pair for _, pair in found])
    try:
        known = Pretrained.load(output)
    except TuningError:
        known = Pretrained({})
    notes = dict(known.notes) | {"loop nests": {"kernels": len(found), "measurements": count}}
    Pretrained({**known.trained, LOOP_NESTS: trees}, notes).save(output)
    print(f"{output}: {len(found)} kernels, {count} measurements, {output.stat().st_size / 1024:.0f} KiB")


SETTINGS = {"prior_rounds": 200, "prior_depth": 6, "prior_eta": 0.07}


def check(rows: list[dict[str, Any]], folds: int = 5) -> dict[str, float]:
    """Train without a fifth of the kernels at a time and rank those: correlations of ranks, and the first's speed."""
    found = list(examples(rows, []))
    ranks, firsts = [], []
    for fold in range(folds):
        model = LoopNestModel(**SETTINGS)
        model.look_at(lambda vector: None)
        trees = model.train([pair for number, (_, pair) in enumerate(found) if number % folds != fold])
        model = LoopNestModel(trained=trees)
        model.look_at(lambda vector: None)
        for number, (name, (features, scores)) in enumerate(found):
            if number % folds == fold and len(scores) > 2:
                order = [np.argsort(np.argsort(values)) for values in (model.predict(features), scores)]
                ranks.append(float(np.corrcoef(*order)[0, 1]))
                firsts.append(float(scores[np.argmax(order[0])] / scores.max()))
                print(f"{name}: {ranks[-1]:.2f}, first {firsts[-1]:.2f}, of {len(scores)}")
    summary = {"rank_correlation": float(np.mean(ranks)), "first": float(np.mean(firsts)), "kernels": len(ranks)}
    print(summary)
    return summary


def main() -> int:
    """Measure, or train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="add measurements to a file")
    measuring.add_argument("--keep", type=Path, required=True)
    measuring.add_argument("--turns", type=int, default=20)
    measuring.add_argument("--seed", type=int, default=0)
    training = commands.add_parser("train", help="train on a file")
    training.add_argument("file", type=Path)
    training.add_argument("-o", "--output", type=Path, default=ARTEFACT)
    training.add_argument("--without", nargs="*", default=[], metavar="NAME", help="leave kernels out")
    training.add_argument("--check", action="store_true", help="rank kernels that were left out, and write nothing")
    arguments = parser.parse_args()
    with only_tensor_intrinsics("x86"):
        if arguments.command == "measure":
            measure(arguments.keep, arguments.turns, arguments.seed)
        elif arguments.check:
            check(read_rows(arguments.file))
        else:
            train(read_rows(arguments.file), arguments.output, arguments.without)
    return 0


if __name__ == "__main__":
    sys.exit(main())
