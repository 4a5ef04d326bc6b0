from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

import tvm_ext
from tests.modules import MODULES, STOCK, Chain, Dynamic, Kernel, Mlp, arguments, run
from tvm_ext.backends.cpu.backend import CPU
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.errors import CompileError, OptionError, OutputError, TargetError
from tvm_ext.options import PipelineOptions
from tvm_ext.phases import PHASES
from tvm_ext.pipeline import phase_passes, tvm_ext_pipeline

PHASE_NAMES = [phase.name for phase in PHASES]
NEEDED = ("legalize", "lower", "finalize")
"""Phases without which TVM cannot generate code from a module of operators."""


def assert_close(results: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for result, reference in zip(results, expected, strict=True):
        assert result.dtype == reference.dtype
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def stock() -> Callable[[str], list[np.ndarray]]:
    """Results of the stock pipeline by name of the module."""
    known: dict[str, list[np.ndarray]] = {}

    def results(name: str) -> list[np.ndarray]:
        if name not in known:
            known[name] = run(tvm.compile(MODULES[name], STOCK), arguments(MODULES[name]))
        return known[name]

    return results


@pytest.mark.parametrize("name", MODULES)
def test_results_equal_those_of_the_stock_pipeline(name: str, stock: Callable[[str], list[np.ndarray]]) -> None:
    executable = tvm.compile(MODULES[name], "llvm", relax_pipeline="tvm_ext")
    assert_close(run(executable, arguments(MODULES[name])), stock(name))


@pytest.mark.parametrize("phase", [name for name in PHASE_NAMES if name not in NEEDED])
@pytest.mark.parametrize("name", ["mlp", "convolutions", "branch"])
def test_results_without_one_phase(name: str, phase: str, stock: Callable[[str], list[np.ndarray]]) -> None:
    pipeline = relax.get_pipeline("tvm_ext", disable=[phase])
    executable = tvm.compile(MODULES[name], "llvm", relax_pipeline=pipeline)
    assert_close(run(executable, arguments(MODULES[name])), stock(name))


@pytest.mark.parametrize("phase", NEEDED)
def test_a_phase_that_code_generation_needs_is_missed_with_an_error(phase: str) -> None:
    with pytest.raises(CompileError, match=f"(code generation .*|phase .*) failed: .*phases switched off: {phase}"):
        tvm_ext.compile(Mlp, disable=[phase])


def test_all_phases_can_be_switched_off_for_a_module_that_went_through_them() -> None:
    lowered, _, _ = lower(Mlp, native_target(), PipelineOptions())
    executable = relax.build(
        lowered, native_target(), relax_pipeline=relax.get_pipeline("tvm_ext", disable=PHASE_NAMES)
    )
    assert_close(run(executable, arguments(Mlp)), run(tvm.compile(Mlp, STOCK), arguments(Mlp)))


def test_symbolic_batch_runs_at_every_size() -> None:
    executable = tvm.compile(Dynamic, "llvm", relax_pipeline="tvm_ext")
    for size in (1, 2, 7, 33):
        values = arguments(Dynamic, n=size)
        assert_close(run(executable, values), [np.maximum(values[0] @ values[1], 0)])


def test_both_branches_of_an_if() -> None:
    executable = tvm.compile(MODULES["branch"], "llvm", relax_pipeline="tvm_ext")
    x = np.linspace(-1, 1, 15, dtype="float32").reshape(3, 5)
    assert_close(run(executable, [np.array(True), x]), [np.exp(x)])
    assert_close(run(executable, [np.array(False), x]), [x - 1])


def test_pipeline_is_a_pass_and_leaves_its_input_alone() -> None:
    before = Mlp.script()
    with native_target():
        lowered = tvm_ext_pipeline()(Mlp)
    assert Mlp.script() == before
    assert "vm.builtin" in lowered.script()
    assert "call_tir" not in lowered.script()


def test_pipeline_compiles_for_this_machine_where_no_target_is_set() -> None:
    with native_target():
        expected = tvm_ext_pipeline()(Mlp)
    tvm.ir.assert_structural_equal(tvm_ext_pipeline()(Mlp), expected)


def test_arithmetic_that_is_wrong_with_our_kernels_is_refused() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "fast-math": True})
    with pytest.raises(TargetError, match="field fast-math: kernels would give wrong values"):
        tvm.compile(Mlp, target, relax_pipeline="tvm_ext")


def on_devices(*kinds: str) -> tvm.IRModule:
    """A perceptron on the first device, its result brought to the last."""
    devices = [relax.VDevice(kind) for kind in kinds]
    x, w = (relax.Var(name, relax.TensorType((16, 16), "float32", devices[0])) for name in "xw")
    builder = relax.BlockBuilder(tvm.IRModule({}, global_infos={"vdevice": devices}))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(x, w))))
            y = builder.emit(relax.op.add(builder.emit(relax.op.matmul(hidden, w)), x))
            y = builder.emit_output(relax.op.to_vdevice(y, devices[-1]) if len(kinds) > 1 else y)
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize("cores", [0, -3])
def test_no_cores_are_refused(cores: int) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": cores})
    with pytest.raises(TargetError, match=f"num-cores: {cores} is no number of cores"):
        tvm.compile(Mlp, target, relax_pipeline="tvm_ext")


def test_tensors_whose_device_is_named() -> None:
    given = [np.random.default_rng(seed).standard_normal((16, 16)).astype("float32") for seed in range(2)]
    found, expected = (
        relax.VirtualMachine(tvm.compile(on_devices("llvm"), native_target(), relax_pipeline=pipeline), tvm.cpu())[
            "main"
        ](*map(tvm.runtime.tensor, given)).numpy()
        for pipeline in ("tvm_ext", "default")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_tensors_on_devices_of_another_kind_are_refused() -> None:
    mod = on_devices("llvm", "c")
    message = r"tensors on devices of the kind c \(vdevice\)"
    with pytest.raises(TargetError, match=message):
        tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    with pytest.raises(TargetError, match=message):
        lower(mod, native_target(), PipelineOptions())


def test_unknown_options_and_phases_list_the_candidates() -> None:
    with pytest.raises(OptionError, match="option 'fold' of pipeline tvm_ext, candidates are disable, dump_dir"):
        relax.get_pipeline("tvm_ext", fold=True)
    with pytest.raises(OptionError, match=f"unknown phase 'fold', candidates are {', '.join(PHASE_NAMES)}"):
        relax.get_pipeline("tvm_ext", disable=["fuse", "fold"])
    with pytest.raises(OptionError, match="option disable: 3 is not a list of phases"):
        relax.get_pipeline("tvm_ext", disable=3)
    with pytest.raises(OptionError, match="option dump_dir: 3 is not a path"):
        relax.get_pipeline("tvm_ext", dump_dir=3)
    with pytest.raises(OptionError, match=r"option dump_dir: 'a\\x00b' is not a path"):
        relax.get_pipeline("tvm_ext", dump_dir="a\0b")


def test_phases_are_named_once_and_explained() -> None:
    assert len(set(PHASE_NAMES)) == len(PHASE_NAMES)
    assert all(phase.summary for phase in PHASES)
    assert PipelineOptions(disable=" fuse ,memory,").disable == ("fuse", "memory")


def test_dumps_show_the_module_after_each_phase(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    tvm.compile(Mlp, "llvm", relax_pipeline=relax.get_pipeline("tvm_ext", dump_dir=folder, disable=["dispatch"]))
    enabled = [name for name in PHASE_NAMES if name != "dispatch"]
    assert sorted(path.name for path in folder.iterdir()) == [f"{i:02d}_{name}.py" for i, name in enumerate(enabled)]
    text = {path.stem[3:]: path.read_text() for path in folder.iterdir()}
    assert "R.matmul" in text["canonicalize"]
    assert "R.matmul" not in text["legalize"]
    assert "R.call_tir" in text["legalize"]
    assert "R.call_tir" not in text["lower"]
    assert "vm.builtin" in text["finalize"]


def test_a_dump_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipeline = relax.get_pipeline("tvm_ext", dump_dir=tmp_path / "file")
    with pytest.raises(OutputError, match=r"option dump_dir: cannot write .*file/00_\w+\.py: File exists"):
        tvm.compile(Mlp, "llvm", relax_pipeline=pipeline)


@tvm.ir.instrument.pass_instrument
class Recorder:
    """Keeps the names of the passes that ran."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        self.names.append(info.name)


def test_instruments_see_the_phases_and_their_passes() -> None:
    recorder = Recorder()
    with tvm.transform.PassContext(instruments=[recorder]):
        tvm.compile(Mlp, "llvm", relax_pipeline="tvm_ext")
    assert "tvm_ext" in recorder.names
    ran = [name.removeprefix("tvm_ext.") for name in recorder.names if name.startswith("tvm_ext.")]
    assert [name for name in ran if name in PHASE_NAMES] == PHASE_NAMES
    assert recorder.names.index("tvm_ext.legalize") < recorder.names.index("LegalizeOps")
    assert recorder.names.index("LegalizeOps") < recorder.names.index("tvm_ext.fuse")


def test_stock_instruments_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    timing = tvm.ir.instrument.PassTimingInstrument()
    dump = tvm.ir.instrument.DumpIR(str(tmp_path / "dump"))
    show = tvm.ir.instrument.PrintAfterAll()
    with tvm.transform.PassContext(instruments=[timing, dump, show]):
        with native_target():
            tvm_ext_pipeline()(Chain)
        profile = timing.render()
    printed = capfd.readouterr().out
    dumped = [path.name for path in (tmp_path / "dump").iterdir()]
    for name in PHASE_NAMES:
        assert f"tvm_ext.{name}" in profile
        assert f"tvm_ext.{name}" in printed
        assert any(f"tvm_ext.{name}" in file for file in dumped)


def test_schedules_of_the_database_in_scope_are_applied() -> None:
    def schedule(sch: tvm.s_tir.Schedule) -> bool:
        sch.parallel(sch.get_loops(sch.get_sblock("triple"))[0])
        return True

    with ms.database.ScheduleFnDatabase(schedule):
        tuned, _, _ = lower(Kernel, native_target(), PipelineOptions())
        without, _, _ = lower(Kernel, native_target(), PipelineOptions(disable=("schedule",)))
    assert "T.parallel" in tuned.script()
    assert "T.parallel" not in without.script()
    assert "T.parallel" not in lower(Kernel, native_target(), PipelineOptions())[0].script()
    values = arguments(Kernel)
    assert_close(run(relax.build(tuned, native_target(), relax_pipeline=None), values), [values[0] * 3])


def test_cuda_kernels_are_compiled() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("compiling for CUDA needs nvcc, which is not on PATH")
    compiled = tvm_ext.compile(Mlp, {"kind": "cuda", "arch": "sm_90"})
    assert compiled.metadata["device"] == "cuda"
    (host,) = compiled.executable.mod.imports
    kinds = [module.kind for module in host.imports]
    assert kinds == ["cuda"]
    assert host.imports[0].inspect_source().count("__global__") >= 3


def test_a_failing_pass_is_reported_with_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        raise ValueError("the roof is on fire")

    broken = tvm.transform.module_pass(fail, opt_level=0, name="fail")
    backend = replace(CPU, phases={**CPU.phases, "fuse": lambda *_: [broken]})
    monkeypatch.setattr("tvm_ext.pipeline.backend_of", lambda target: backend)
    with pytest.raises(CompileError, match=r"^phase fuse failed: the roof is on fire$"):
        tvm_ext.compile(Mlp)


def test_an_interrupt_in_a_pass_is_still_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        raise KeyboardInterrupt

    stop = tvm.transform.module_pass(interrupted, opt_level=0, name="stop")
    backend = replace(CPU, phases={phase.name: lambda *_: [stop] for phase in PHASES})
    monkeypatch.setattr("tvm_ext.pipeline.backend_of", lambda target: backend)
    with pytest.raises(KeyboardInterrupt):
        tvm_ext.compile(Mlp)


def test_presets_set_what_is_not_given() -> None:
    assert PipelineOptions.from_keywords({"opt_level": 2}) == PipelineOptions()
    quick = PipelineOptions.from_keywords({"opt_level": 0, "winograd": True})
    assert (quick.memory, quick.winograd, quick.flush_denormals) == ("stock", True, False)
    assert PipelineOptions.from_keywords({"opt_level": 3}).fuse == "mapping-type"
    with pytest.raises(OptionError, match="option opt_level: 4 is none of 0, 1, 2, 3"):
        tvm_ext.compile(Mlp, opt_level=4)
    with pytest.raises(OptionError, match="option opt_level: True is none of"):
        tvm_ext.compile(Mlp, opt_level=True)


@pytest.mark.parametrize("level", [0, 1, 3])
def test_results_at_every_level(level: int, stock: Callable[[str], list[np.ndarray]]) -> None:
    executable = tvm.compile(MODULES["mlp"], "llvm", relax_pipeline=relax.get_pipeline("tvm_ext", opt_level=level))
    assert_close(run(executable, arguments(MODULES["mlp"])), stock("mlp"))


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'memry' of pipeline tvm_ext, .*; did you mean memory\?"):
        relax.get_pipeline("tvm_ext", memry="arena")


def test_phase_passes_follow_the_table_of_contents() -> None:
    chain = phase_passes(native_target(), PipelineOptions(disable=("fuse",)))
    assert [phase.name for phase, _ in chain] == [name for name in PHASE_NAMES if name != "fuse"]
    assert [phase_pass.info.name for _, phase_pass in chain] == [f"tvm_ext.{phase.name}" for phase, _ in chain]
