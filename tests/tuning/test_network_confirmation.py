"""A tuned network is not slower than the untuned one: harmful records are found, and left alone by compilations."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule

import tvm_ext
from tests.database.test_tuned_schedules import record
from tests.schedules.kernels import graph
from tests.zoo.quantized import quantized
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.database import tuned_schedules
from tvm_ext.database.files import LEFT_ALONE, NETWORKS, RECORDS
from tvm_ext.database.folders import open_database
from tvm_ext.database.marks import known_networks, left_alone, note_left_alone, note_network
from tvm_ext.database.networks import NETWORK_ATTRIBUTE
from tvm_ext.database.tuned_schedules import record_of
from tvm_ext.errors import InputError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.options import PipelineOptions
from tvm_ext.system.threads import in_threads, is_given_up, threads
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import kernels_to_tune, network_confirmation, tune
from tvm_ext.tuning.network_confirmation import NetworkConfirmation

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_confirmation, "SECONDS", 0.05)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(workers=1, threads=1, timing=Timing(repeats=1, seconds=0.001)) as made:
        yield made


def weights(*shape: int) -> relax.Constant:
    return relax.const(RNG.standard_normal(shape).astype("float32") * 0.1, "float32")


def one_product() -> tvm.IRModule:
    matrix = weights(128, 160)
    return graph(lambda bb, x: relax.op.nn.relu(bb.normalize(relax.op.matmul(x, matrix))), [((96, 128), "float32")])


def two_products() -> tvm.IRModule:
    first, second = weights(128, 160), weights(160, 224)
    return graph(
        lambda bb, x: relax.op.matmul(bb.normalize(relax.op.matmul(x, first)), second), [((96, 128), "float32")]
    )


def two_inputs() -> tvm.IRModule:
    return graph(lambda bb, x, y: relax.op.matmul(x, y), [((96, 128), "float32"), ((128, 160), "float32")])


def open_length() -> tvm.IRModule:
    """What open extents there are, and a product of fixed ones, whose kernel can be tuned."""
    length, first, second = tvm.tirx.Var("n", "int64"), weights(128, 160), weights(96, 64)
    return graph(
        lambda bb, x, y: bb.normalize(
            relax.Tuple([bb.normalize(relax.op.matmul(x, first)), bb.normalize(relax.op.matmul(y, second))])
        ),
        [((96, 128), "float32"), ((3, length, 96), "float32")],
    )


def integers() -> ImportedModel:
    return tvm_ext.import_model(quantized("tiny_cnn").onnx_model())


def untiled(folder: Path, mod: tvm.IRModule, most: int | None = None) -> list[str]:
    """Record the slowest schedule there is, as if it were the fastest; gives the names of the kernels."""
    tasks = kernels_to_tune(mod, native_target())[:most]
    for task in tasks:
        schedule = Schedule(task.mod)
        schedule.enter_postproc()
        record(folder, task.mod, schedule, 1e-9)
    return [task.name for task in tasks]


def network(mod: tvm.IRModule, options: PipelineOptions | None = None) -> str:
    return kernels_to_tune(mod, native_target(), options=options or PipelineOptions())[0].network


def from_database(mod: tvm.IRModule, folder: Path) -> set[str]:
    lowered = lower(mod, native_target(), PipelineOptions(work_dir=str(folder)))[0]
    functions = ((name.name_hint, func) for name, func in lowered.functions_items())
    return {name for name, func in functions if isinstance(func, tvm.tirx.PrimFunc) and record_of(func) is not None}


@pytest.mark.parametrize("model", [one_product, two_inputs, open_length, integers])
def test_a_slow_record_is_found_and_left_out(model, measurer: Measurer, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    made = model()
    mod = made.mod if isinstance(made, ImportedModel) else made
    names = untiled(tmp_path, mod)
    assert names
    assert from_database(mod, tmp_path) == set(names)
    result = tune(made, native_target(), tmp_path, len(names), recipe("random"), measurer=measurer)
    assert result.trials == 0
    assert result.network is not None
    left = set(result.network.left_alone)
    assert left == set(names) if len(names) == 1 else left
    assert result.network.found > 1.01 * result.network.before
    assert result.network.sentence() in result.notes
    assert {kernel.name for kernel in result.kernels if kernel.left_alone} == left
    assert from_database(mod, tmp_path) == set(names) - left
    tvm_ext.compile(mod, work_dir=tmp_path)  # and does not say that the database were of no use

    again = tune(made, native_target(), tmp_path, len(names), recipe("random"), measurer=measurer)
    assert again.network is None, "what was compared is not compared again"
    assert {kernel.name for kernel in again.kernels if kernel.left_alone} == left


def test_only_the_kernel_that_does_harm_is_left_alone(measurer: Measurer, tmp_path: Path) -> None:
    mod = two_products()
    tune(mod, native_target(), tmp_path, 4, recipe("random"), batch=2, measurer=measurer, confirm=False)
    slow = untiled(tmp_path, mod, most=1)
    assert set(slow) < from_database(mod, tmp_path)
    found = NetworkConfirmation(
        tvm_ext.import_model(mod), native_target(), PipelineOptions(), tmp_path, network(mod), 1
    ).run(open_database(tmp_path), [])
    assert found.left_alone == tuple(slow)
    assert set(slow) & from_database(mod, tmp_path) == set()
    assert from_database(mod, tmp_path)


def test_a_record_that_is_faster_later_is_taken(measurer: Measurer, tmp_path: Path) -> None:
    mod = one_product()
    untiled(tmp_path, mod)
    tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    (task,) = kernels_to_tune(mod, native_target())
    schedule = task.space.schedule(task.space.space.default)
    schedule.enter_postproc()
    record(tmp_path, task.mod, schedule, 1e-10)
    assert from_database(mod, tmp_path) == {task.name}


def test_nothing_is_compared_where_the_network_is_the_same(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod = one_product()
    monkeypatch.setattr(network_confirmation, "generate_code", lambda *_: pytest.fail("nothing is to be compiled"))
    result = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)  # the rule's own choice
    assert (result.trials, result.network, result.notes) == (1, None, [])
    assert (tmp_path / NETWORKS).exists()
    assert not (tmp_path / LEFT_ALONE).exists() or not left_alone(tmp_path, network(mod), 1)


def test_an_interrupt_keeps_the_records(measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = one_product()
    untiled(tmp_path, mod)
    before = (tmp_path / RECORDS).read_text()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(network_confirmation, "in_turns", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    assert (tmp_path / RECORDS).read_text() == before
    assert not (tmp_path / NETWORKS).exists()
    result = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    assert result.network is not None
    assert result.network.left_alone


@pytest.mark.parametrize("options", [{}, {"memory": "optimal"}, {"fuse": "mapping-type"}, {"winograd": False}])
@pytest.mark.parametrize("model", [one_product, open_length, integers])
def test_a_compilation_finds_the_network_that_was_tuned(model, options, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    made = model()
    mod = made.mod if isinstance(made, ImportedModel) else made
    untiled(tmp_path, mod, 1)
    seen = []
    monkeypatch.setattr(tuned_schedules, "left_alone", lambda _folder, name, _count: seen.append(name) or set())
    lowered = lower(mod, native_target(), PipelineOptions(work_dir=str(tmp_path), **options))[0]
    assert seen == [network(mod, PipelineOptions(**options))]
    assert not lowered.attrs or NETWORK_ATTRIBUTE not in lowered.attrs


def test_marks_are_of_a_network_and_not_of_its_kernels(measurer: Measurer, tmp_path: Path) -> None:
    """The same kernel elsewhere is another matter; a folder may be spelt in another way."""
    mod = one_product()
    names = untiled(tmp_path, mod)
    tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    assert from_database(mod, tmp_path) == set()
    matrix = weights(128, 160)

    def again(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = bb.emit(relax.op.nn.relu(bb.normalize(relax.op.matmul(x, matrix))))
        return relax.Tuple([first, bb.emit(relax.op.nn.softmax(first))])

    larger = graph(again, [((96, 128), "float32")])
    assert from_database(larger, tmp_path) == set(names)
    elsewhere = Path(os.path.relpath(tmp_path))
    found = tune(mod, native_target(), elsewhere, 1, recipe("random"), measurer=measurer)
    assert found.network is None, "what was compared is not compared again"
    assert found.kernels[0].left_alone


def test_only_the_tuned_network_fails(measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = one_product()
    untiled(tmp_path, mod)
    whole = network_confirmation.generate_code

    def fails(lowered: tvm.IRModule, target: tvm.target.Target) -> object:
        if any(record_of(func) for _, func in lowered.functions_items() if isinstance(func, tvm.tirx.PrimFunc)):
            raise TypeError("no code for this")
        return whole(lowered, target)

    monkeypatch.setattr(network_confirmation, "generate_code", fails)
    result = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    assert result.notes == [
        "the network fails with what was found, and keeps its own schedules: TypeError: no code for this"
    ]
    assert from_database(mod, tmp_path) == set()


@pytest.mark.parametrize("error", [TypeError("odd"), KeyError("odd"), MemoryError(), OSError(28, "No space left")])
def test_whatever_fails_is_noted_and_what_was_measured_stays(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    mod = one_product()
    names = untiled(tmp_path, mod)

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(network_confirmation, "generate_code", fails)
        result = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    (note,) = result.notes
    assert note.startswith("the network was not compared with the untuned one: ")
    assert type(error).__name__ in note
    assert from_database(mod, tmp_path) == set(names)
    again = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    assert again.network is not None, "it is compared by the next run"


def test_it_can_be_left_out(measurer: Measurer, tmp_path: Path) -> None:
    mod = one_product()
    names = untiled(tmp_path, mod)
    result = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer, confirm=False)
    assert result.network is None
    assert from_database(mod, tmp_path) == set(names)


def test_a_model_that_cannot_be_run_is_said_so(measurer: Measurer, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    mod = one_product()
    names = untiled(tmp_path, mod)

    def no_inputs(*_: object) -> None:
        raise InputError("no inputs can be made up")

    monkeypatch.setattr(network_confirmation, "random_inputs", no_inputs)
    result = tune(mod, native_target(), tmp_path, 1, recipe("random"), measurer=measurer)
    assert result.notes == ["the network was not compared with the untuned one: no inputs can be made up"]
    assert from_database(mod, tmp_path) == set(names)


def test_damaged_marks_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / LEFT_ALONE).write_text(
        '["net", 1, "a", "b"]\n{\n7\n["c"]\n["c", "d"]\n["other", 1, "d", "e"]\n["net", 2, "f", "g"]\n["net", 1, "h'
    )
    assert left_alone(tmp_path, "net", 3) == {("a", "b"), ("f", "g")}
    assert left_alone(tmp_path, None, 3) == set()


def test_marks_of_other_numbers_of_threads_count_until_there_are_own_ones(tmp_path: Path) -> None:
    note_left_alone(tmp_path, "net", 1, [("a", "b")])
    note_network(tmp_path, "key", "net", 1, [1.0, 2.0, 1.0])
    assert left_alone(tmp_path, "net", 2) == {("a", "b")}
    note_network(tmp_path, "other", "net", 2, [1.0, 0.5, 0.5])
    assert left_alone(tmp_path, "net", 2) == set()
    assert left_alone(tmp_path, "net", 1) == {("a", "b")}
    assert known_networks(tmp_path) == {"key", "other"}


def test_kernels_run_in_as_many_threads_as_they_were_tuned_for() -> None:
    here = threading.get_ident()
    assert in_threads(threads(), threading.get_ident) == here
    assert in_threads(threads() + 1, threading.get_ident) != here
    assert in_threads(threads() + 1, is_given_up) is False

    def fails() -> None:
        raise InputError("as it says")

    with pytest.raises(InputError, match="as it says"):
        in_threads(threads() + 1, fails)


def test_the_command_says_what_the_network_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import onnx

    from tests.zoo import get
    from tvm_ext.cli.main import main

    model = tmp_path / "model.onnx"
    onnx.save(get("tiny_cnn").onnx_model(), model)
    arguments = ["tune", str(model), "--work-dir", str(tmp_path / "db"), "--trials", "8", "--threads", "1", "--json"]
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert not left.value.code
    times = json.loads(capfd.readouterr().out)["network_times"]
    assert times is None or times["before"] > 0
