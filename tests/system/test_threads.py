"""Threads of kernels: the same values as one alone, bit by bit, a core for each, and sleep on busy machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_ext
from tests.processes import output_of
from tests.schedules.kernels import graph
from tests.zoo import get
from tvm_ext.system import threads

RUN = """
import hashlib
import sys
from pathlib import Path
import numpy as np
import tvm_ext

folder, runs = Path(sys.argv[1]), int(sys.argv[2])
for path in sorted(folder.glob("*.npz")):
    model, inputs = tvm_ext.load(path.with_suffix("")), dict(np.load(path))
    for _ in range(runs):
        digest = hashlib.sha256(b"".join(value.tobytes() for value in model.run(inputs).values())).hexdigest()
        print(path.stem, digest)
"""
SIZE = 17, 1031, 259
"""More than 16 MiB of float32, and nothing that vectors, tiles or threads divide."""


def put(name: str, model: Any, inputs: list[np.ndarray], folder: Path) -> None:
    """Compile a model and save it beside its inputs."""
    shapes = None if not isinstance(model, Path) else {key: value.shape for key, value in get(name).inputs().items()}
    compiled = tvm_ext.compile(model, input_shapes=shapes)
    compiled.save(folder / name)
    np.savez(folder / f"{name}.npz", **{spec.name: value for spec, value in zip(compiled.inputs, inputs, strict=True)})


def results(folder: Path, count: int, runs: int) -> dict[str, set[str]]:
    """Give digests of the different results of each model in a folder, run by a process with so many threads."""
    source = f"import sys\nsys.argv = {['', str(folder), str(runs)]!r}\n{RUN}"
    found: dict[str, set[str]] = {}
    for line in output_of(source, TVM_NUM_THREADS=str(count)).splitlines():
        name, digest = line.split()
        found.setdefault(name, set()).add(digest)
    return found


@pytest.mark.slow
def test_models(tmp_path: Path) -> None:
    names = [name for name in ("squeezenet", "shufflenet", "ppocr_rec", "silero_vad") if not get(name).missing()]
    for name in names:
        put(name, get(name).onnx_path(), list(get(name).inputs().values()), tmp_path)
    alone = results(tmp_path, 1, 1)
    assert list(alone) == sorted(names)
    assert results(tmp_path, 2, 4) == alone


def _convolution(weights: tuple[int, ...], **attributes: int) -> Callable[..., relax.Expr]:
    constant = relax.const(np.random.default_rng(1).standard_normal(weights).astype("float32"), "float32")
    return lambda bb, x: relax.op.nn.relu(bb.normalize(relax.op.nn.conv2d(x, constant, **attributes)))


KERNELS: dict[str, tuple[Callable[..., relax.Expr], tuple[int, ...]]] = {
    "elementwise": (lambda bb, x: relax.op.tanh(relax.op.add(x, x)), SIZE),
    "softmax": (lambda bb, x: relax.op.nn.softmax(x, axis=-1), SIZE),
    "sum": (lambda bb, x: relax.op.sum(x, axis=[1]), SIZE),
    "transpose": (lambda bb, x: relax.op.permute_dims(x, [2, 0, 1]), SIZE),
    "attention": (lambda bb, x: relax.op.nn.attention(x, x, x), (1, 131, 3, 64)),
    "product": (lambda bb, x: relax.op.matmul(x, bb.normalize(relax.op.permute_dims(x))), (517, 129)),
    "pooling": (lambda bb, x: relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), (1, 67, 113, 113)),
    "winograd": (_convolution((96, 64, 3, 3), padding=1), (1, 64, 57, 55)),
    "pointwise": (_convolution((96, 64, 1, 1)), (1, 64, 57, 55)),
    "stem": (_convolution((48, 3, 7, 7), strides=2, padding=3), (1, 3, 113, 111)),
    "depthwise": (_convolution((80, 1, 5, 5), groups=80, padding=2), (1, 80, 29, 31)),
    "groups": (_convolution((40, 10, 3, 3), groups=4, padding=1), (3, 40, 29, 31)),
}


def test_kernels(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, (build, shape) in KERNELS.items():
        values = generator.standard_normal(shape).astype("float32")
        put(name, graph(build, [(shape, "float32")]), [values], tmp_path)
    alone = results(tmp_path, 1, 1)
    assert list(alone) == sorted(KERNELS)
    assert results(tmp_path, 2, 8) == alone


@pytest.mark.skipif(threads.physical_cores() < 2, reason="one core")
def test_calling_thread_stays_where_it_may_not_go() -> None:
    source = """
    import os
    import tvm
    from tvm_ext.system import bound_pool, threads

    threads.with_pool(int)
    away = threads._one_of_each_core()[1]
    os.sched_setaffinity(0, {away})
    print(threads.with_pool(bound_pool.current_processor) == away, os.sched_getaffinity(0) == {away})
    """
    assert output_of(source) == "True True"


@pytest.mark.parametrize(("counts", "busy"), [([9] * 5, True), ([9, 9, 9, 9, 0], False), ([0], False)])
def test_machine_is_busy_that_is_so_each_time(monkeypatch: pytest.MonkeyPatch, counts: list[int], busy: bool) -> None:
    left = iter(counts)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(threads, "_others_that_run", lambda: next(left))
    assert threads._is_busy() is busy
    assert next(left, None) is None


@pytest.mark.skipif(threads.physical_cores() < 2, reason="one core")
def test_virtual_machines_of_ones_own_have_all_threads(tmp_path: Path) -> None:
    compiled = tvm_ext.compile(graph(lambda _, x: relax.op.tanh(x), [((3, 5), "float32")]))
    compiled.save(tmp_path / "model")
    source = f"""
    import tvm
    import tvm_ext
    from tvm_ext.system.threads import threads

    executable = tvm_ext.load({str(tmp_path / "model")!r}).executable
    print(tvm.get_global_func("runtime.NumThreads")() == threads(), executable is not None)
    """
    assert output_of(source) == "True True"
