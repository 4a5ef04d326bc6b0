"""Measured latencies: taken on demand, kept, and decisive for blocks whose fusion pays only sometimes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.fusion.relax.test_fuse import build
from tests.modules import arguments, run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import OptionError, OutputError
from tvm_ext.fusion.cuts import chains
from tvm_ext.fusion.operator_graph import operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.relax import latency as fusion_latency
from tvm_ext.fusion.relax.check import BlockCheck
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types, kernel_mappings, kernel_tails
from tvm_ext.fusion.relax.latency import BlockLatencies, kernel_seconds
from tvm_ext.fusion.relax.trials import TrialSchedules
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import from_relax
from tvm_ext.schedules import cpu
from tvm_ext.schedules.rule import apply_rules

TARGET = native_target()


def normalised(emit, x):
    mean = emit(op.mean(x, [-1], keepdims=True))
    centred = emit(op.subtract(x, mean))
    return emit(op.multiply(centred, emit(op.max(emit(op.exp(centred)), [-1], keepdims=True))))


def lowered() -> tvm.IRModule:
    return relax.transform.LegalizeOps()(build(normalised, (16, 40)))


def fused(profiles: Path) -> tvm.IRModule:
    with TARGET:
        return fuse_by_mapping_types(rules=cpu.RULES, profiles=profiles)(lowered())


def entries(path: Path) -> dict[str, dict[str, object]]:
    return json.loads(path.read_text())["entries"]


def test_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profiles.json"
    fused(path)
    found = entries(path)
    assert len(found) >= 3  # the whole, and the chains it is made of
    assert all(entry["source"] == "measured" and 0 < entry["seconds"] < 1 for entry in found.values())
    for _ in range(3):  # what was measured corrects the estimates, by which other blocks may be considered
        fused(path)
        before, found = found, entries(path)
        assert before.items() <= found.items()
        if before == found:
            break
    monkeypatch.setattr(fusion_latency, "kernel_seconds", None)  # nothing is measured again
    fused(path)
    assert entries(path) == found


def test_open_extents_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_latency, "kernel_seconds", None)
    mod = relax.transform.LegalizeOps()(build(normalised, (tvm.tirx.Var("n", "int64"), 40)))
    with TARGET:
        found = fuse_by_mapping_types(rules=cpu.RULES, profiles=tmp_path / "profiles.json")(mod)
    x = np.random.default_rng(0).standard_normal((7, 40)).astype("float32")
    centred = x - x.mean(1, keepdims=True)
    values = run(tvm.compile(found, TARGET), [x])[0]
    np.testing.assert_allclose(values, centred * np.exp(centred).max(1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("whole_seconds", "blocks"), [(1e-6, 1), (1.0, 4)])  # 4: the table joins exp and max
def test_a_block_is_cut_up_where_its_parts_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_seconds: float, blocks: int
) -> None:
    mod = lowered()
    graph = from_relax(mod)
    operators = operator_graph(graph, kernel_mappings(mod, graph), kernel_tails(mod, graph))
    plan = plan_fusion(operators)
    assert len(plan.blocks) == 1
    latencies = BlockLatencies(TARGET, tmp_path / "profiles.json")
    pieces = chains(operators, plan.blocks[0].operators)

    def seconds(_graph: object, members: set[int], _kernel: object) -> float:
        return 1e-3 if set(members) in pieces else whole_seconds

    monkeypatch.setattr(latencies, "seconds", seconds)
    settled = BlockCheck(mod, TrialSchedules(cpu.RULES), TARGET, latencies).settle(plan, operators, mod["main"])
    verify_plan(settled, operators)
    assert len(settled.blocks) == blocks


def test_values_stay_the_same(tmp_path: Path) -> None:
    mod = build(normalised, (16, 40))
    pipeline = relax.get_pipeline("tvm_ext", fuse="mapping-type", fuse_profiles=tmp_path / "profiles.json")
    values = arguments(mod)
    (found,), (expected,) = (
        run(tvm.compile(mod, TARGET, relax_pipeline=chosen), values) for chosen in (pipeline, "default")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_without_a_file_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_latency, "kernel_seconds", None)
    with TARGET:
        fuse_by_mapping_types(rules=cpu.RULES)(lowered())


def test_a_longer_kernel_takes_longer() -> None:
    def time(rows: int) -> float:
        mod = relax.transform.LegalizeOps()(build(lambda emit, x: emit(op.exp(x)), (rows, 512)))
        (kernel,) = (func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
        return kernel_seconds(apply_rules(kernel, TARGET, cpu.RULES), TARGET)

    assert 0 < 4 * time(4) < time(4096)


def test_option() -> None:
    with pytest.raises(OptionError, match="option fuse_profiles: 3 is not a path"):
        relax.get_pipeline("tvm_ext", fuse_profiles=3)


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text("{")
    with pytest.warns(UserWarning, match="cannot be read"):
        fused(path)
    assert entries(path)
    assert (tmp_path / "profiles.json.damaged1").exists()


def test_shipped_entries_hold_on_their_own_target_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Elsewhere nothing is measured, nothing is said, and the planner decides by its cost model."""
    path = tmp_path / "profiles.json"
    fused(path)
    monkeypatch.setattr(fusion_latency, "SHIPPED", path)
    monkeypatch.setattr(fusion_latency, "kernel_seconds", None)  # nothing is measured again
    mod = lowered()
    graph = from_relax(mod)
    operators = operator_graph(graph, kernel_mappings(mod, graph), kernel_tails(mod, graph))
    whole = set(range(len(operators)))
    assert BlockLatencies(TARGET).seconds(operators, whole, None) in [e["seconds"] for e in entries(path).values()]
    foreign = tvm.target.Target({"kind": "llvm", "mcpu": "core2", "num-cores": 3})
    assert BlockLatencies(foreign).seconds(operators, whole, None) is None
    with foreign:
        fuse_by_mapping_types(rules=cpu.RULES)(mod)
    assert not recwarn.list


def test_shipped_file_lies_in_the_package_and_is_packed() -> None:
    import tomllib

    root = Path(__file__).parents[3]
    assert fusion_latency.SHIPPED == root / "tvm_ext" / "fusion" / "profiles.json"
    packed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    assert "*.json" in packed


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    pipeline = relax.get_pipeline("tvm_ext", fuse="mapping-type", fuse_profiles=tmp_path / "mistyped" / "profiles.json")
    with pytest.raises(
        OptionError, match=r"there is no folder .*mistyped for profiles.json; create it, or correct the"
    ):
        with TARGET:
            pipeline(lowered())
    assert not (tmp_path / "mistyped").exists()


def test_nothing_is_measured_for_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_latency, "kernel_seconds", None)

    def full(_database: fusion_latency.ProfileDatabase) -> None:
        raise OutputError("full")

    monkeypatch.setattr(fusion_latency.ProfileDatabase, "check_writable", full)
    with pytest.raises(OutputError, match="full"):
        fused(tmp_path / "profiles.json")


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0])

    def seconds(_kernel: object, _target: object) -> float:
        found = next(times, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(fusion_latency, "kernel_seconds", seconds)
    with pytest.raises(KeyboardInterrupt):
        fused(tmp_path / "profiles.json")
    assert len(entries(tmp_path / "profiles.json")) == 1


def test_nothing_is_measured_for_a_target_that_does_not_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(fusion_latency, "kernel_seconds", None)
    path = tmp_path / "profiles.json"
    target = tvm.target.Target({"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu", "mcpu": "generic-rv64"})
    pipeline = relax.get_pipeline("tvm_ext", fuse="mapping-type", fuse_profiles=path)
    with target:
        pipeline(build(normalised, (16, 40)))
    assert not path.exists()
    assert not [item for item in recwarn.list if "profile" in str(item.message)]


def test_measured_blocks_correct_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profiles.json"
    monkeypatch.setattr(fusion_latency, "kernel_seconds", lambda _kernel, _target: 1.0)
    fused(path)
    noted = entries(path).values()
    assert all(entry["estimate"] > 0 and entry["kind"] for entry in noted)  # type: ignore[operator]
    mod = lowered()
    graph = from_relax(mod)
    operators = operator_graph(graph, kernel_mappings(mod, graph), kernel_tails(mod, graph))
    plain, corrected = BlockLatencies(TARGET), BlockLatencies(TARGET, path)
    for index in range(len(operators)):
        assert corrected.estimate(operators, {index}) > 1000 * plain.estimate(operators, {index})


def test_profiles_of_another_machine_are_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    fused(path)
    data = json.loads(path.read_text())
    here = next(iter(data["entries"].values()))["machine"]
    moved = {
        key.removesuffix(here) + "Abacus, 1 core": entry | {"machine": "Abacus, 1 core"}
        for key, entry in data["entries"].items()
    }
    path.write_text(json.dumps(data | {"entries": moved}))
    with pytest.warns(UserWarning, match=r"profile database .* are of Abacus, 1 core, and this machine is .*not used"):
        fused(path)
    assert set(entries(path)) == set(moved) | set(data["entries"])


def test_profiles_need_the_fusion_that_reads_them(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="option fuse_profiles needs fuse='mapping-type', not 'stock'"):
        relax.get_pipeline("tvm_ext", fuse_profiles=tmp_path / "profiles.json")
