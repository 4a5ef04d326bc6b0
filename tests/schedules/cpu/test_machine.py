"""The machine model: every figure of it decides something, and what is shipped decides as it always did."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tvm
from tvm.script import tirx as T

from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.schedules.cpu import conv_tile, cost, machine, matmul, matvec, winograd
from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.known_cpus import KNOWN_CPUS
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.native_cpu import NativeCpu
from tvm_ext.schedules.cpu.winograd import winograd_outputs
from tvm_ext.target import resolve_target

MACHINE = Machine("avx512", 512, 32, "vnni", l2=1 << 20, l3=32 << 20, cores=2)
FIGURES = [field.name for field in fields(Machine) if field.type == "float" and field.name != "slow_load"]


def test_kernels_are_divided_where_that_saves_more_than_the_fork() -> None:
    assert MACHINE.divides(500_000)
    assert not MACHINE.divides(499_999)
    assert not replace(MACHINE, cores=1).divides(1 << 40)
    assert replace(MACHINE, fork_seconds=1.25e-6).divides(250_000)
    assert not replace(MACHINE, flops=200e9).divides(500_000)
    # Of many cores, each has hardly anything to do: nearly all of the time is saved.
    assert replace(MACHINE, cores=101).divides(252_500)
    assert not replace(MACHINE, cores=101).divides(252_000)


def test_narrow_vectors_cost_what_the_units_lose() -> None:
    two = replace(MACHINE, clock=3e9, flops=192e9)
    assert (two.units, two.narrowing(1), two.narrowing(2), two.narrowing(4)) == (2, 1, 2, 4)
    one = replace(two, flops=96e9)
    assert (one.units, one.narrowing(2), one.narrowing(4)) == (1, 1, 2)
    assert replace(two, flops=384e9).narrowing(2) == 2


def test_two_cores_of_a_server_count_on_a_part_of_its_last_cache() -> None:
    few, many, small = (
        machine.machine_of(
            resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu, "num-cores": cores})
        )
        for cpu, cores in (("sapphirerapids", 2), ("sapphirerapids", 56), ("znver4", 1))
    )
    assert (few.l3, few.shares_l3) == (32 << 20, True)
    assert (many.l3, many.shares_l3) == (105 << 20, False)
    assert (small.l3, small.shares_l3) == (32 << 20, False)


def test_slow_loads_choose_tiles_of_few_loads() -> None:
    """As measured on a server by Intel: 8 x 3 and 9 x 3 before 14 x 2 and 6 x 4, these before 8 x 2 and 4 x 6."""
    quick = replace(MACHINE, clock=3e9, flops=192e9)
    slow = replace(quick, free_loads=3)
    assert (slow.excess_loads(11, 24), quick.excess_loads(10, 16)) == (0, 0)
    assert slow.excess_loads(10, 16) == pytest.approx(1.6)
    assert slow.excess_loads(10, 24, 4) == pytest.approx(1.6)

    def rate(tile: tuple[int, int]) -> float:
        return matmul.tile_cost(1008, 72, 1024, tile, slow)

    assert max(rate((8, 3)), rate((9, 3))) < min(rate((14, 2)), rate((6, 4)))
    assert max(rate((14, 2)), rate((6, 4))) < min(rate((8, 2)), rate((4, 6)))
    assert matmul.register_tile(1024, 64, 1024, 4096, slow) == (8, 3)
    assert matmul.register_tile(1024, 64, 1024, 4096, quick) == (8, 2)


def test_one_load_a_cycle_chooses_tiles_that_need_no_more() -> None:
    """As measured on Ice Lake: 14 x 2 take 1.1 times as long as 6 x 4, and 4 x 4 are worth their bytes from L2."""
    ice_lake = machine.machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "icelake-server", "num-cores": 2}))
    assert ice_lake.excess_loads(16, 28) == pytest.approx(4)  # 16 cycles in place of 14
    assert (ice_lake.excess_loads(10, 24), ice_lake.excess_loads(8, 16, 4)) == (0, 0)
    assert conv_tile.register_tile(28, 8, ice_lake, 512, exact=True) == (4, 4)
    assert conv_tile.register_tile(28, 8, ice_lake, 512)[1] >= 3
    assert matmul.register_tile(128, 48, 768, 3072, ice_lake) == (8, 3)
    assert (ice_lake.strip, MACHINE.strip) == (32, 0)


@pytest.mark.parametrize("mattr", [[], ["+avx512vnni"]])
def test_wide_vectors_of_an_unknown_cpu_are_those_of_a_server(mattr: list[str]) -> None:
    """Measured on Ice Lake under no name: halves of vectors cost PP-OCR's detector 1.4 times, 13 x 1 SqueezeNet 1.2."""
    unknown = machine.machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4", "mattr": mattr}))
    assert unknown.narrowing(2) == pytest.approx(2, rel=0.01)
    assert unknown.excess_loads(14, 13) > 0
    assert conv_tile.register_tile(169, 63, unknown, 512)[1] >= 3


def test_columns_that_stay_in_the_cache_of_a_core_are_wide() -> None:
    zen3 = machine.machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver3"}))
    assert matmul.register_tile(128, 96, 3072, 4 * 3072, zen3) == (4, 3)
    # With half of the cache, they come from the last one for each tile of rows.
    assert matmul.register_tile(128, 96, 3072, 4 * 3072, replace(zen3, l2=256 << 10)) == (6, 2)


def test_convolutions_with_avx2_choose_columns_that_divide_the_width() -> None:
    zen3 = machine.machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver3"}))
    assert [conv_tile.register_tile(width, 8, zen3, 576) for width in (28, 56, 60)] == [(4, 2), (4, 2), (6, 2)]
    assert conv_tile.register_tile(56, 3, zen3, 144) == (4, 3)
    assert conv_tile.register_tile(33, 1, zen3, 144) == (7, 1)


@T.prim_func(s_tir=True)
def copy_and_exponential(x: T.Buffer((1000, 1000), "float32"), y: T.Buffer((1000, 1000), "float32")) -> None:
    for i, j in T.grid(1000, 1000):
        with T.sblock("y"):
            a, b = T.axis.remap("SS", [i, j])
            y[a, b] = T.exp(x[a, b]) + T.float32(1)


@pytest.mark.parametrize(
    ("figure", "part"),
    [("stream_bandwidth", 8e6 / 13e9), ("function_seconds", 1e6 * 0.3e-9), ("operation_seconds", 1e6 * 0.03e-9)],
)
def test_seconds_of_a_block(figure: str, part: float) -> None:
    schedule = tvm.s_tir.Schedule(copy_and_exponential)
    block = schedule.get_sblock("y")
    seconds = block_seconds(schedule, block, MACHINE)
    assert seconds == pytest.approx(8e6 / 13e9 + 1e6 * 0.33e-9)
    doubled = 2 * getattr(MACHINE, figure)
    change = block_seconds(schedule, block, replace(MACHINE, **{figure: doubled})) - seconds
    assert change == pytest.approx(-part / 2 if "bandwidth" in figure else part)


def test_weights_that_come_slowly_are_kept_small() -> None:
    def outputs(**figures: float) -> int:
        return winograd_outputs(1, 512, 512, (14, 14), replace(MACHINE, **figures))

    assert outputs(weight_bandwidth=100e9, l3_bandwidth=100e9) == 4
    assert outputs(weight_bandwidth=1e9, l3_bandwidth=1e9) == 0
    assert outputs(l3_bandwidth=1e9, l3=128 << 20) == 0
    assert outputs(weight_bandwidth=1e9, l3=128 << 20) == outputs(l3=128 << 20)
    slow = outputs(clock=0.5e9, flops=100e9 / 7, weight_bandwidth=1.5e9, l3_bandwidth=5e9)
    assert slow == outputs(clock=3.5e9, l3_bandwidth=35e9)
    # Two multiply-adds a cycle hide less of the way of the weights, of which a larger tile has more.
    found = [winograd_outputs(1, 192, 320, (7, 7), replace(MACHINE, flops=flops)) for flops in (100e9, 224e9)]
    assert found == [4, 2]


def test_blocks_of_the_fusion_planner() -> None:
    model = LinearModel.of(replace(MACHINE, call_seconds=3e-6, flops=7e9, memory_bandwidth=5e9))
    assert (model.start, model.peak, model.bandwidth) == (6e-6, 7e9, 5e9)
    assert LinearModel.of(MACHINE) == LinearModel()


@pytest.mark.parametrize("module", [cost, matvec, winograd], ids=lambda module: module.__name__.rpartition(".")[2])
def test_rules_have_no_figures_of_their_own(module: object) -> None:
    """A bandwidth or a duration in a rule is one more opinion about the same machine."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    literals = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is float]
    assert not [value for value in literals if value > 1e6 or 0 < value < 1e-4]


def test_every_figure_is_read_by_a_cost() -> None:
    root = Path(str(machine.__file__)).resolve().parents[2]
    sources = [*(root / "schedules").rglob("*.py"), *(root / "tvm_ext").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert [figure for figure in FIGURES if f"machine.{figure}" not in text and f"self.{figure}" not in text] == []
    assert len(FIGURES) == 12


@pytest.mark.parametrize(
    ("triple", "mcpu", "mattr", "expected"),
    [
        ("aarch64-linux-gnu", "cortex-a72", [], ("neon", 128, "", 4)),
        ("aarch64-linux-gnu", "cortex-a76", [], ("neon", 128, "sdot", 4)),
        ("aarch64-linux-gnu", "neoverse-n1", [], ("neon", 128, "sdot", 3)),
        ("aarch64-linux-gnu", "neoverse-v1", [], ("neon", 128, "sudot", 3)),
        ("arm64-apple-macos", "apple-m1", [], ("neon", 128, "sdot", 4)),
        ("arm64-apple-macos", "apple-m2", [], ("neon", 128, "sudot", 4)),
        ("riscv64-linux-gnu", "generic-rv64", ["+d", "+v"], ("rvv", 128, "", 3)),
        ("riscv64-linux-gnu", "spacemit-x60", [], ("rvv", 256, "", 3)),
        ("riscv64-linux-gnu", "sifive-u74", [], ("generic", 128, "", 3)),
    ],
)
def test_cpus_of_other_machines(
    triple: str, mcpu: str, mattr: list[str], expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "physical_cores", lambda: 3)
    machine.forget_machines()
    found = machine.machine_of(tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": mcpu, "mattr": mattr}))
    machine.forget_machines()
    assert (found.isa, found.vector_bits, found.dot_product, found.cores) == expected


@pytest.mark.parametrize(("mcpu", "fuses"), [("cortex-a7", True), ("cortex-a9", False), ("cortex-a53", True)])
def test_arm_programs_of_32_bits_have_half_the_registers(mcpu: str, fuses: bool) -> None:
    found = machine.machine_of(resolve_target({"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": mcpu}))
    assert (found.isa, found.vector_registers, found.fuses) == ("neon", 14, fuses)


@pytest.mark.parametrize("name", sorted(KNOWN_CPUS))
def test_known_cpus_are_names_of_llvm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "native_cpu", lambda: NativeCpu("another"))
    monkeypatch.setattr(machine, "physical_cores", lambda: 60)
    machine.forget_machines()
    client = name in ("alderlake", "raptorlake", "meteorlake", "arrowlake", "znver2", "znver3")
    server = name.startswith("znver") or name.endswith(("lake", "rapids", "avx512", "lake-server"))
    triple = "x86_64-linux-gnu" if server else "aarch64-linux-gnu"
    target = resolve_target({"kind": "llvm", "mtriple": triple, "mcpu": name})
    known, found = KNOWN_CPUS[name], machine.machine_of(target)
    assert (found.l1, found.l2, found.l3) == (known.l1 << 10, known.l2 << 10, known.l3 << 10)
    assert (found.isa, found.units) == ("avx2" if client else "avx512" if server else "neon", known.units)
    assert (found.free_loads, found.fetches_once) == (known.free_loads, known.fetches_once)
    assert found.fetches_near == known.fetches_near
    assert found.flops == 2 * found.lanes("float32") * known.units * known.clock
    assert found.l2_bandwidth == (known.l2_bytes * known.clock or Machine("", 0, 0).l2_bandwidth)
    assert machine.machine_of(resolve_target({**target.export(), "num-cores": 64})).cores == 64
    machine.forget_machines()


@pytest.mark.parametrize(("cores", "seen", "counted"), [(2, 480, 32), (2, 32, 32), (1, 32, 16), (60, 112, 112)])
def test_a_few_cores_count_on_a_part_of_a_server_s_last_cache(
    cores: int, seen: int, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_host_caches", lambda: {3: seen << 20})
    monkeypatch.setattr(machine, "physical_cores", lambda: cores)
    machine.forget_machines()
    try:
        found = machine.machine_of(resolve_target(None))
        assert (found.l3, found.shares_l3) == (counted << 20, counted < seen)
    finally:
        monkeypatch.undo()
        machine.forget_machines()
