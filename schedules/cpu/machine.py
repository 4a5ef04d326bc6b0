"""What a CPU offers to a kernel, as one frozen row: vector width, registers, cache sizes, cores, and how fast it is.

The instruction set comes from the target; where that is the CPU of this machine, cache sizes come from the machine, and
so do the figures that ``tvm-ext calibrate`` measured; otherwise they are those of the CPU, where it is a known one, or
of the row of the instruction set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm

from tvm_ext.schedules.cpu.calibration import read_calibration
from tvm_ext.schedules.cpu.known_cpus import KNOWN_CPUS
from tvm_ext.schedules.cpu.native_cpu import native_cpu
from tvm_ext.system.threads import physical_cores


@dataclass(frozen=True)
class Machine:
    """A CPU as the schedule rules see it.

    Attributes
    ----------
    isa : str
        Name of the instruction-set row.
    vector_bits : int
        Width of a vector register.
    vector_registers : int
        How many there are for register tiles.
    dot_product : str
        Instruction family for 8-bit dot products: ``"vnni"``, ``"sdot"``, ``"sudot"`` or ``""``.
    pairs_loads : bool
        Whether LLVM brings loads of several steps of a reduction together: the steps must then be kept apart.
    fuses : bool
        Whether one instruction multiplies and adds, and one loads an element into all lanes. Without, as with SSE, an
        element that is met with few vectors costs as much as a multiply-add.
    free_loads : int
        Loads beside six multiply-adds of vectors that take no time of their own; 0: however many there are.
    slow_load : float
        Multiply-adds that a load which is not free takes the place of.
    far_bytes : int
        Bytes that arrive from the L2 cache in a cycle without being in the way of the multiply-adds.
    strip : int
        Elements that a strip of tiles which transpose has at most; 0: as many as the second TLB has pages for.
    joins_parts : bool
        Whether halves of lines that are stored past the caches by several rows in turn leave as whole lines.
    fetches_once : bool
        Whether several cores that read more than the caches hold, each line once, do so faster when it is fetched as
        such (non-temporal), which keeps it from the last cache. Other CPUs may have lost it when it is read.
    fetches_near : bool
        Whether lines from memory are best fetched into the L1 cache; else into the L2 cache.
    l1, l2, l3 : int
        Data cache sizes in bytes: L1 and L2 of one core, L3 as shared.
    shares_l3 : bool
        Whether the last cache is larger than what the cores count on, as other machines use it.
    streams_weights : bool
        Whether a network has more weights than the last cache keeps, so that each run reads them from memory.
    cores : int
        Physical cores.
    clock : float
        Cycles a second of a core that computes in vectors.
    flops : float
        Multiplications and additions a second of one core, in vectors.
    function_seconds, operation_seconds : float
        One element of a transcendental function or of a division, and one of an arithmetic operation, in vectors.
    stream_bandwidth : float
        Bytes a second that one core moves between memory and registers, reading and writing.
    read_bandwidth : float
        Bytes a second that one core reads side by side, as dot products do.
    weight_bandwidth, l3_bandwidth, l2_bandwidth : float
        Bytes a second that one core reads of weights while it multiplies, from memory, the L3 and the L2 cache.
    memory_bandwidth : float
        Bytes a second that all cores together move between memory and registers.
    fork_seconds : float
        Handing a kernel to the thread pool and waiting for it.
    call_seconds : float
        Calling a kernel.
    calibrated : str
        When the figures of this machine were measured; empty where they are those of the row.
    """

    isa: str
    vector_bits: int
    vector_registers: int
    dot_product: str = ""
    pairs_loads: bool = False
    fuses: bool = True
    free_loads: int = 0
    slow_load: float = 0.8
    far_bytes: int = 16
    strip: int = 0
    joins_parts: bool = False
    fetches_once: bool = False
    fetches_near: bool = False
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    shares_l3: bool = False
    streams_weights: bool = False
    cores: int = 1
    clock: float = 3.5e9
    flops: float = 100e9
    function_seconds: float = 0.3e-9
    operation_seconds: float = 0.03e-9
    stream_bandwidth: float = 13e9
    read_bandwidth: float = 25e9
    weight_bandwidth: float = 10.5e9
    l3_bandwidth: float = 35e9
    l2_bandwidth: float = 56e9
    memory_bandwidth: float = 20e9
    fork_seconds: float = 2.5e-6
    call_seconds: float = 1e-6
    calibrated: str = ""

    def divides(self, flops: float) -> bool:
        """Whether a kernel of so many operations is worth handing to the thread pool."""
        return self.cores > 1 and flops >= round(self.flops * self.forking_pays_from())

    def forking_pays_from(self) -> float:
        """Seconds of one core from which on a kernel is worth handing to the thread pool.

        What the cores save together has to be more than the fork.
        """
        return WORTH_FORKS * self.fork_seconds * self.cores / (self.cores - 1) if self.cores > 1 else float("inf")

    def broadcasts(self, elements: int) -> float:
        """How many multiply-adds of vectors could be issued while elements are brought to all lanes, beside others."""
        return 0.0 if self.fuses else UNFUSED_BROADCAST * elements

    def excess_loads(self, loads: int, multiply_adds: int, far: int = 0) -> float:
        """How many multiply-adds of vectors could be issued in the time that loads take beside others.

        ``far`` is the number of vectors that come from the L2 cache.
        """
        if not self.free_loads:
            return 0.0
        loads_in_excess = max(0, loads - multiply_adds * self.free_loads / 6)
        bytes_in_excess = max(0, far * self.vector_bits / 8 - self.far_bytes * multiply_adds / 2)
        # With 512 bits an excess of two alone was measured, and is as dear by either law.
        crowd = loads_in_excess / 2 if self.vector_bits < 512 else 1
        return self.slow_load * loads_in_excess * crowd + SLOW_BYTE * bytes_in_excess

    def narrowing(self, parts: int) -> float:
        """How many times as long as in whole vectors as many multiply-adds take in vectors of a part of the width.

        A core that computes two whole vectors in a cycle computes no more than two halves; one that takes them in
        halves anyway loses nothing.
        """
        return max(1.0, parts * min(1.0, self.units / NARROW_UNITS))

    @property
    def fetched_bandwidth(self) -> float:
        """Bytes a second of weights that one core reads from memory where they are fetched ahead, all cores at work."""
        return READ_ALONE * self.memory_bandwidth / self.cores

    @property
    def units(self) -> float:
        """Whole float32 vectors that a core multiplies and adds in a cycle."""
        return self.flops / (2 * self.lanes("float32") * self.clock)

    def slots(self, seconds: float) -> float:
        """How many multiply-adds of whole float32 vectors one core could issue meanwhile."""
        return seconds * self.flops / (2 * self.lanes("float32"))

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        return max(1, self.vector_bits // tvm.DataType(dtype).bits)


READ_ALONE = 1.2
"""Times the bytes a second that are read and written in turns that cores read: 57 and 48 GB/s on two cores of Zen 5."""

UNFUSED_BROADCAST = 0.8
"""Multiply-adds that a load and a shuffle take the place of, measured with code for SSE4 on Zen 3."""

SLOW_BYTE = 0.025
"""Multiply-adds that a byte takes the place of which arrives from the L2 cache beyond those that are in nobody's way.

On Sapphire Rapids, where one load for every two multiply-adds is free, tiles of 8 x 3 and 9 x 3 vectors were measured
at 240 GFLOP/s, 14 x 2 and 6 x 4 at 225, 8 x 2 at 214 and 4 x 6 at 210. Ice Lake loads one vector of 512 bits a cycle
and no more, an element for all its lanes included: of the peak, 14 x 2 were measured at 0.87, 12 x 2 at 0.85, 8 x 2 at
0.82 and 28 x 1 at 0.52, but 8 x 3, 7 x 3, 6 x 4 and 5 x 4 at 0.95 to 0.98, and 4 x 4, for which 30 bytes a cycle come
from the L2 cache, at 0.95. On Zen 3, in vectors of 256 bits, loads get into each other's way the more of them there
are: of the peak, 4 x 2, 5 x 2, 6 x 2 and 4 x 3 were measured at 0.96 to 0.98, 8 x 1 at 0.79, 9 x 1 at 0.77, 10 x 1 at
0.72 and 14 x 1 at 0.66. On Zen 5 nothing is seen of it.
"""

WORTH_FORKS = 1
"""Times the thread pool's own time that dividing a kernel has to save.

Measured on Zen 5 with two threads and eight models in turns: 1 takes 0.98 of the time of 2 (0.89 for MobileNetV2 in 8
bits, 1.03 for a network of 350 short kernels), and 4 takes 1.03 of it (three models).
"""

POINTWISE_SHARE, WINDOW_SHARE = 0.9, 0.4
"""Of the peak of a core: what short convolutions of 1 x 1 taps and depthwise ones reach, with operands in the L2 cache.

Both were measured on one thread of Zen 5: of 1 x 1 taps in 18 kernels of 22 to 59 microseconds of MobileNetV2 and
EfficientNet-B0, 0.82 to 0.95, half of them 0.88 to 0.93; depthwise in kernels of 2 to 12 microseconds of three
networks, 0.53 to 0.78,
and 0.38 to 0.47 where what precedes the convolution is computed while its input is copied.
"""

NARROW_UNITS = 2
"""Vectors narrower than the widest that are multiplied and added in a cycle, on all x86 cores with FMA since 2013."""

L3_OF_CORE = 16 << 20
"""Most of the last cache that one core can count on. A virtual machine of two cores sees that of the whole server, such
as 480 MiB, most of which the other cores use: measured there, results of 16 MiB and more are better stored past it.
"""

FIGURES = tuple(field.name for field in fields(Machine) if field.type == "float" and field.name != "slow_load")
"""Fields of :class:`Machine` that ``tvm-ext calibrate`` measures."""

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_SERVER: Mapping[str, Any] = {
    "free_loads": 3, "strip": 32, "l2": 1 << 20, "l3": 16 << 20, "clock": 2.8e9, "flops": 179e9, "l2_bandwidth": 98e9,
    "memory_bandwidth": 30e9,
}  # fmt: skip

# LLVM features that a row needs, best first.
ROWS: tuple[tuple[frozenset[str], Machine], ...] = (
    # Two multiply-adds and one load of 512 bits a cycle, as servers of Intel have; Zen 4 has half of it, Zen 5 more:
    # what is taken for these costs them less than halves of vectors, and tiles of one vector, cost the servers.
    (frozenset({*_AVX512, "avx512vnni"}), Machine("avx512", 512, 32, "vnni", **_SERVER)),
    (_AVX512, Machine("avx512", 512, 32, **_SERVER)),
    (frozenset({"avx2", "fma", "avxvnni"}), Machine("avx2", 256, 16, "vnni")),
    # Two loads and two multiply-adds of 256 bits a cycle, as Haswell to Skylake and Zen 2 to Zen 4 have them.
    # Bytes from caches and memory are those of Zen 3, and near to those of the others.
    (
        frozenset({"avx2", "fma"}),
        Machine("avx2", 256, 16, free_loads=5, l3=16 << 20, l2_bandwidth=98e9, memory_bandwidth=30e9),
    ),
    # A multiplication and an addition instead of a multiply-add, of 128 bits.
    (frozenset({"sse4.1"}), Machine("sse4", 128, 16, fuses=False, flops=5e10)),
    # Of 32 registers LLVM needs two to read the inputs of one multiply-add during another.
    (frozenset({"neon", "dotprod", "i8mm"}), Machine("neon", 128, 30, "sudot", pairs_loads=True, l1=64 << 10)),
    (frozenset({"neon", "dotprod"}), Machine("neon", 128, 30, "sdot", pairs_loads=True, l1=64 << 10)),
    (frozenset({"neon"}), Machine("neon", 128, 30, pairs_loads=True)),
    (frozenset({"zve32f", "zvl256b"}), Machine("rvv", 256, 32, pairs_loads=True)),
    (frozenset({"zve32f", "zvl128b"}), Machine("rvv", 128, 32, pairs_loads=True)),
    (frozenset(), Machine("generic", 128, 16, fuses=False, flops=5e10)),
)


def machine_of(target: tvm.target.Target | None = None) -> Machine:
    """Describe the CPU of an LLVM target, by default of the current one."""
    attributes = (target or tvm.target.Target.current(allow_none=False)).attrs
    return _machine(
        str(attributes.get("mtriple", "")),
        str(attributes.get("mcpu", "")),
        ",".join(str(attribute) for attribute in attributes.get("mattr", ())),
        int(attributes.get("num-cores", 0)),
    )


def is_this_cpu(target: tvm.target.Target) -> bool:
    """Whether the figures that were measured on this machine are those of an LLVM target."""
    config = {key: target.attrs.get(key) for key in ("mtriple", "mcpu", "mattr")}
    return _is_measured(str(config["mcpu"] or ""), _row(_features(config)))


def _is_measured(mcpu: str, row: Machine) -> bool:
    """Whether code is for this CPU with the vectors that it was measured with: a target may leave some of them out."""
    native = native_cpu()
    return mcpu == native.name and row == _row(_features({"mcpu": native.name, "mattr": native.features}))


def _features(config: Mapping[str, Any]) -> frozenset[str]:
    target = tvm.target.Target({"kind": "llvm", **{key: value for key, value in config.items() if value}})
    return frozenset(map(str, tvm.target.codegen.llvm_get_cpu_features(target)))


def _row(features: frozenset[str]) -> Machine:
    """Find the row of an instruction set, with the registers that programs of 32 bits have on Arm."""
    row = next(machine for needed, machine in ROWS if needed <= features)
    if row.isa == "neon" and "d32" in features:
        row = replace(row, vector_registers=14, fuses="vfp4" in features)
    return row


def for_weights(machine: Machine, nbytes: int) -> Machine:
    """Describe a CPU as a network meets it that has so many bytes of weights."""
    return replace(machine, streams_weights=nbytes > machine.l3 // 2)


def forget_machines() -> None:
    """Read the calibration anew when a machine is asked for next."""
    _machine.cache_clear()


@lru_cache(maxsize=64)
def _machine(triple: str, mcpu: str, mattr: str, cores: int) -> Machine:
    row = _row(_features({"mtriple": triple, "mcpu": mcpu, "mattr": mattr.split(",") if mattr else []}))
    native = _is_measured(mcpu, row)
    known = KNOWN_CPUS.get(mcpu)
    if known is not None:
        lanes = row.lanes("float32")
        cores = cores or known.cores
        own = max(2, cores or physical_cores()) * L3_OF_CORE
        row = replace(
            row, l1=known.l1 << 10, l2=known.l2 << 10, **_own_part(known.l3 << 10, own), clock=known.clock,
            flops=2 * lanes * known.units * known.clock,
            l2_bandwidth=known.l2_bytes * known.clock or row.l2_bandwidth, free_loads=known.free_loads,
            slow_load=known.slow_load, far_bytes=known.far_bytes, strip=known.strip, joins_parts=known.joins_parts,
            fetches_once=known.fetches_once, fetches_near=known.fetches_near,
            memory_bandwidth=known.memory_bandwidth or row.memory_bandwidth,
        )  # fmt: skip
    if mcpu == native_cpu().name:
        caches = _host_caches()
        own = physical_cores() * L3_OF_CORE
        row = replace(row, l1=caches.get(1, row.l1), l2=caches.get(2, row.l2), **_own_part(caches.get(3, row.l3), own))
        measured = read_calibration(FIGURES) if native else None
        if measured is not None:
            changes: dict[str, Any] = {**measured.figures, "calibrated": measured.date}
            row = replace(row, **changes)
    if not cores:
        cores = physical_cores()
    return replace(row, cores=cores)


def _own_part(l3: int, own: int) -> dict[str, Any]:
    """Say how much of a last cache counts, and whether other machines use the rest, where ``own`` bytes are ours."""
    return {"l3": min(l3, own), "shares_l3": l3 > own}


def _host_caches() -> dict[int, int]:
    """Read the data cache sizes of this machine (bytes) by level."""
    sizes: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind in ("Data", "Unified") and level in "123":
                sizes[int(level)] = int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
        except (OSError, ValueError):
            continue
    return sizes
