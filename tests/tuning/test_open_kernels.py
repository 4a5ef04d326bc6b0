"""Kernels of open extents are tuned for several sizes, and run the version whose size is nearest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tests.database.test_tuned_schedules import record
from tests.shapes.dynamic_models import MODELS as DYNAMIC_MODELS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.database.files import RECORDS
from tvm_ext.database.folders import open_database
from tvm_ext.database.marks import note_left_alone
from tvm_ext.database.networks import network_of
from tvm_ext.database.tuned_schedules import RECORD_ATTRIBUTE, record_of
from tvm_ext.errors import OptionError, TuningError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.open_versions import VERSIONS_ATTRIBUTE, original_of, picks_of
from tvm_ext.schedules.recorded_versions import recorded_versions
from tvm_ext.schedules.rule import tunable_schedule, tunable_with
from tvm_ext.tuners.measure.code import build
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import Task, kernels_to_tune, network_confirmation, tune
from tvm_ext.tuning.sizes import sizes_to_tune

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(workers=1, threads=1, timing=Timing(repeats=1, seconds=0.001)) as made:
        yield made


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_confirmation, "SECONDS", 0.05)


def constant(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype("float32") / prod(shape[1:]) ** 0.5, name)


def model_of(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], **inputs: list[str | int]
) -> onnx.ModelProto:
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "open", declared, result, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def product() -> onnx.ModelProto:
    """A product of any number of rows, and a rectifier."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["out"])]
    return model_of(nodes, [constant("w", 33, 70)], x=["n", 33])


def batched_product() -> onnx.ModelProto:
    """Products of matrices that are both inputs: how many columns are packed is open, too."""
    return model_of([helper.make_node("MatMul", ["x", "y"], ["out"])], [], x=["b", "n", 17], y=["b", 17, "m"])


def convolution(kernel: int, channels: int = 17, filters: int = 48) -> onnx.ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)
    weights = [constant("w", filters, channels, kernel, kernel)]
    return model_of([node, helper.make_node("Relu", ["y"], ["out"])], weights, x=["n", channels, "h", "w"])


MODELS = {
    "product": (product, {"n": (1, 300)}, "cpu.open_product"),
    "batched product": (batched_product, {"b": (1, 4), "n": (1, 100), "m": (1, 100)}, "cpu.open_product"),
    "convolution": (lambda: convolution(1), {"n": (1, 3), "h": (1, 40), "w": (1, 40)}, "cpu.open_convolution"),
    "Winograd": (lambda: convolution(3, 64, 64), {"n": (1, 3), "h": (3, 40), "w": (3, 40)}, "cpu.open_winograd"),
}


@cache
def onnx_of(name: str) -> onnx.ModelProto:
    return MODELS[name][0]()


def imported(name: str) -> ImportedModel:
    return import_model(onnx_of(name), dynamic=MODELS[name][1])


def copies(model: ImportedModel, *sizes: Mapping[str, int]) -> list[Task]:
    return kernels_to_tune(model.mod, native_target(), sizes=sizes_to_tune(model, sizes))


def noted(folder: Path, task: Task, picks: tuple[int, ...]) -> None:
    """Put a record with these choices into a database."""
    schedule = tunable_with(task.mod["main"], native_target(), RULES, picks)
    assert schedule is not None
    record(folder, task.mod, schedule)


def other_picks(task: Task, seed: int) -> tuple[int, ...]:
    """Draw choices that can be written, and are not the rule's own."""
    space, generator = task.space.space, np.random.default_rng(seed)
    while True:
        vector = tuple(int(generator.integers(len(knob.choices))) for knob in space.knobs)
        schedule = task.space.schedule(vector)
        if schedule is not None and vector != tuple(space.default or ()):
            found = picks_of(schedule.mod["main"])
            assert found is not None
            return found


def versions_in(mod: tvm.IRModule) -> list[list[object]]:
    functions = (func for _, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc))
    found = [func.attrs.get(VERSIONS_ATTRIBUTE) for func in functions if func.attrs]
    return [json.loads(str(row)) for row in found if row is not None]


def expected_of(name: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_of(name).SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def feeds_of(model: ImportedModel, size: Mapping[str, int]) -> dict[str, np.ndarray]:
    return {
        spec.name: RNG.standard_normal([size[e] if isinstance(e, str) else e for e in spec.shape]).astype("float32")
        for spec in model.inputs
    }


SIZES = {
    "product": [{"n": n} for n in (1, 7, 40, 127, 128, 200, 300)],
    "batched product": [{"b": 1, "n": 1, "m": 1}, {"b": 3, "n": 17, "m": 33}, {"b": 4, "n": 100, "m": 97}],
    "convolution": [{"n": 1, "h": 1, "w": 1}, {"n": 2, "h": 7, "w": 17}, {"n": 3, "h": 40, "w": 39}],
    "Winograd": [{"n": 1, "h": 3, "w": 3}, {"n": 2, "h": 7, "w": 17}, {"n": 3, "h": 40, "w": 39}],
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_version_computes_the_same(name: str, seed: int, tmp_path: Path) -> None:
    _, dynamic, rule = MODELS[name]
    model = imported(name)
    tasks = copies(model, *SIZES[name])
    assert tasks, "there is something to tune"
    for number, task in enumerate(tasks):
        noted(tmp_path, task, other_picks(task, seed + number))
    lowered = lower(model.mod, native_target(), PipelineOptions(work_dir=str(tmp_path)))[0]
    (versions,) = versions_in(lowered)
    assert len(versions) > 1
    functions = [func for _, func in lowered.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    assert rule in [str(func.attrs["tvm_ext.schedule_rule"]) for func in functions if VERSIONS_ATTRIBUTE in func.attrs]
    compiled = tvm_ext.compile(onnx_of(name), work_dir=tmp_path, dynamic=dynamic)
    for size in SIZES[name]:
        feeds = feeds_of(model, size)
        (found,) = compiled.run(feeds).values()
        np.testing.assert_allclose(found, expected_of(name, feeds), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DYNAMIC_MODELS)
def test_kernels_of_all_kinds_of_models_are_looked_at(name: str) -> None:
    """Convolutions of padded inputs, whose extents are sums, among them; no kernel of another kind ends the search."""
    case = DYNAMIC_MODELS[name]()
    model = import_model(case.model, dynamic=case.dynamic)
    for task in copies(model):
        assert task.space.schedule(task.space.space.default or ()) is not None


@pytest.mark.parametrize("name", ["attention_block", "conformer", pytest.param("pyramid", marks=pytest.mark.slow)])
def test_models_with_versions_of_every_kernel(name: str, tmp_path: Path) -> None:
    case = DYNAMIC_MODELS[name]()
    for number, task in enumerate(copies(import_model(case.model, dynamic=case.dynamic))):
        if original_of(task.mod["main"]) is not None:
            noted(tmp_path, task, other_picks(task, number))
    tuned = tvm_ext.compile(case.model, dynamic=case.dynamic, work_dir=tmp_path)
    untuned = tvm_ext.compile(case.model, dynamic=case.dynamic)
    for seed, sizes in enumerate(case.sizes(6)):
        feeds = case.feeds(sizes, seed)
        for found, wanted in zip(tuned.run(feeds).values(), untuned.run(feeds).values(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_versions_run_up_to_the_geometric_mean_of_neighbouring_sizes(tmp_path: Path) -> None:
    model = imported("product")
    tasks = {
        task.name.partition("(")[2].rstrip(")"): task for task in copies(model, *({"n": n} for n in (1, 4, 16, 64)))
    }
    own = picks_of(tasks["n=1"].space.schedule(tasks["n=1"].space.space.default).mod["main"])  # type: ignore[union-attr,arg-type]
    assert own is not None
    other = other_picks(tasks["n=16"], 0)
    for name, chosen in (("n=1", own), ("n=4", own), ("n=16", other), ("n=64", own)):
        noted(tmp_path, tasks[name], chosen)
    lowered = lower(model.mod, native_target(), PipelineOptions(work_dir=str(tmp_path)))[0]
    columns = 70
    assert versions_in(lowered) == [[[8 * columns, list(own)], [32 * columns, list(other)], [None, list(own)]]]


def test_a_copy_holds_its_kernel_and_is_timed_as_it(tmp_path: Path) -> None:
    model = imported("batched product")
    (task,) = copies(model, {"b": 2, "n": 5, "m": 40})
    original = original_of(task.mod["main"])
    assert original is not None
    assert all(isinstance(extent, tvm.tirx.IntImm) for extent in task.mod["main"].params[-1].ty.shape)
    assert not any(isinstance(extent, tvm.tirx.IntImm) for extent in original.params[-1].ty.shape)
    schedule = task.space.schedule(other_and_valid(task))
    assert schedule is not None
    code = build(schedule.mod, native_target())
    data, packed = (RNG.standard_normal([int(e) for e in p.ty.shape]).astype("float32") for p in original_params(task))
    chunks, columns = packed.shape[1] * packed.shape[3], 40
    out = tvm.runtime.tensor(np.zeros((2, 5, columns), "float32"))
    code["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(packed), out)
    whole = data @ packed.transpose(0, 2, 1, 3).reshape(2, packed.shape[2], chunks)
    np.testing.assert_allclose(out.numpy(), whole[..., :columns], rtol=1e-4, atol=1e-4)


def other_and_valid(task: Task) -> tuple[int, ...]:
    wanted = other_picks(task, 3)
    return tuple(knob.choices.index((number,)) for knob, number in zip(task.space.space.knobs, wanted, strict=True))


def original_params(task: Task) -> list[tvm.ir.Var]:
    return list(task.mod["main"].params[:2])


def test_choices_do_not_depend_on_extents_that_are_open() -> None:
    """A right operand of 5 chunks in one run may have 6 in the next: the width of tiles divides what is packed."""
    model = imported("batched product")
    (small,) = copies(model, {"b": 1, "n": 5, "m": 5 * 16})
    (large,) = copies(model, {"b": 1, "n": 5, "m": 6 * 16})
    assert [knob.choices for knob in small.space.space.knobs] == [knob.choices for knob in large.space.space.knobs]


def test_a_tile_that_registers_do_not_hold_is_no_schedule() -> None:
    (task,) = copies(imported("product"), {"n": 5})
    knobs = task.space.space.knobs
    largest = tuple(len(knob.choices) - 1 for knob in knobs)
    assert task.space.schedule(largest) is None


def test_kernels_that_are_open_have_no_trace_to_follow() -> None:
    (task,) = copies(imported("product"), {"n": 5})
    original = original_of(task.mod["main"])
    assert original is not None
    assert tunable_schedule(original, native_target(), RULES) is None


def test_records_of_other_choices_than_todays_are_left_out(tmp_path: Path) -> None:
    model = imported("product")
    (task,) = copies(model, {"n": 5})
    noted(tmp_path, task, other_picks(task, 0))
    rows = tmp_path / RECORDS
    number, value = json.loads(rows.read_text())
    (candidates,) = (inst[2][0] for inst in value[0][0][:1])
    candidates[-1] += 1  # as another release may have had it
    rows.write_text(json.dumps([number, value]) + "\n")
    with native_target():
        mod = lowered_to_schedule(model)
        found = recorded_versions(mod, open_database(tmp_path), RULES, lambda who: False)
    assert (found.taken, found.left) == ({}, {})


def lowered_to_schedule(model: ImportedModel) -> tvm.IRModule:
    from tvm_ext.passes.exact_reductions import initialize_open_reductions
    from tvm_ext.pipeline import phase_passes

    mod = model.mod
    with native_target(), tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(native_target(), PipelineOptions()):
            if phase.name == "schedule":
                break
            mod = phase_pass(mod)
        return initialize_open_reductions()(mod)


def test_versions_that_do_harm_are_left_alone(tmp_path: Path) -> None:
    model = imported("product")
    (task,) = copies(model, {"n": 5})
    noted(tmp_path, task, other_picks(task, 0))
    options = PipelineOptions(work_dir=str(tmp_path))
    lowered = lower(model.mod, native_target(), options)[0]
    (who,) = [found for _, func in lowered.functions_items() if (found := of_kernel(func)) is not None]
    note_left_alone(tmp_path, task.network, 1, [who])
    again = lower(model.mod, native_target(), options)[0]
    assert versions_in(again) == []
    assert not any(of_kernel(func) for _, func in again.functions_items())


def of_kernel(func: tvm.ir.BaseFunc) -> tuple[str, str] | None:
    return record_of(func) if isinstance(func, tvm.tirx.PrimFunc) and RECORD_ATTRIBUTE in (func.attrs or {}) else None


def test_a_network_is_known_by_its_kernels_whatever_sizes_it_is_tuned_for() -> None:
    model = imported("product")
    (small,), (large,) = copies(model, {"n": 5}), copies(model, {"n": 50})
    assert small.network == large.network == network_of(lowered_without_schedule(model), native_target())


def lowered_without_schedule(model: ImportedModel) -> tvm.IRModule:
    from tvm_ext.pipeline import phase_passes

    mod = model.mod
    with native_target(), tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(native_target(), PipelineOptions()):
            if phase.name == "schedule":
                return mod
            mod = phase_pass(mod)
    raise AssertionError


def test_tuning_times_each_size_and_the_network_with_all_of_them(measurer: Measurer, tmp_path: Path) -> None:
    model = imported("product")
    sizes = [{"n": 1}, {"n": 48}]
    result = tune(model, native_target(), tmp_path, 12, recipe("random"), batch=4, measurer=measurer, sizes=sizes)
    assert [kernel.name.partition(" ")[2] for kernel in result.kernels] == ["(n=48)", "(n=1)"]
    assert all(kernel.before is not None and kernel.best is not None for kernel in result.kernels)
    assert result.network is None or result.network.sizes == ({"n": 1}, {"n": 48})
    again = tune(model, native_target(), tmp_path, 12, recipe("random"), batch=4, measurer=measurer, sizes=sizes)
    assert again.resumed == 12
    compiled = tvm_ext.compile(onnx_of("product"), work_dir=tmp_path, dynamic={"n": (1, 300)})
    feeds = {"x": RNG.standard_normal((13, 33)).astype("float32")}
    np.testing.assert_allclose(
        next(iter(compiled.run(feeds).values())), expected_of("product", feeds), rtol=1e-4, atol=1e-4
    )


@pytest.mark.torch
def test_kernels_that_take_extents_as_numbers_can_be_timed(measurer: Measurer, tmp_path: Path) -> None:
    """A padded picture tells its extents only with what was added to them."""
    torch = pytest.importorskip("torch")
    convolution = torch.nn.Conv2d(3, 17, 3, padding=1)
    picture = torch.randn(1, 3, 16, 20)
    dims = {2: torch.export.Dim("h", min=8, max=64), 3: torch.export.Dim("w", min=8, max=64)}
    model = import_model(torch.export.export(convolution, (picture,), dynamic_shapes=({**dims},)))
    result = tune(model, native_target(), tmp_path, 6, recipe("random"), batch=3, measurer=measurer, confirm=False)
    assert [kernel.failed for kernel in result.kernels] == [0] * len(result.kernels)
    assert len({kernel.best for kernel in result.kernels}) == 3
    compiled = tvm_ext.compile(model, work_dir=tmp_path)
    (found,) = compiled.run([picture.numpy()]).values()
    np.testing.assert_allclose(found, convolution(picture).detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([{"m": 3}], r"no open dimension 'm'; it has n"),
        ([{"n": 0}], r"n = 0 is not in the range of that dimension, 1\.\.300"),
        ([{"n": 301}], r"n = 301 is not in the range of that dimension, 1\.\.300"),
        ([{"n": "4"}], r"n = '4' is not in the range of that dimension, 1\.\.300"),
    ],
)
def test_sizes_that_are_none(sizes: list[dict[str, int]], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        tune(imported("product"), native_target(), tmp_path, 1, recipe("random"), sizes=sizes)


def test_sizes_of_a_model_without_open_extents(tmp_path: Path) -> None:
    model = import_model(product(), input_shapes={"x": [4, 33]})
    with pytest.raises(OptionError, match="no open dimension 'n'; all its extents are fixed"):
        tune(model, native_target(), tmp_path, 1, recipe("random"), sizes=[{"n": 4}])


def test_a_model_of_open_extents_without_products_has_nothing_to_tune(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["out"])]
    model = import_model(model_of(nodes, [], x=["n", 33]), dynamic={"n": (1, 8)})
    with pytest.raises(TuningError, match="nothing to tune"):
        tune(model, native_target(), tmp_path, 1, recipe("random"))
