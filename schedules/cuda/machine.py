"""What a GPU offers to a kernel, as one frozen row a product; figures of NVIDIA's data sheets and tuning guides.

Limits of an architecture are those of the table "Technical Specifications per Compute Capability" in the CUDA C++
Programming Guide; rates are the dense ones, at boost clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm


@dataclass(frozen=True)
class GpuMachine:
    """A GPU as the schedule rules and the cost model see it.

    Attributes
    ----------
    name : str
        Of the product, as in the target tag ``nvidia/NAME``.
    compute : int
        Compute capability, ten times: 90 for sm_90.
    multiprocessors : int
        Streaming multiprocessors.
    clock : float
        Cycles a second.
    bandwidth, l2_bandwidth : float
        Bytes a second of the device memory, and of the L2 cache as all multiprocessors together read it.
    l2 : int
        Bytes of the L2 cache.
    lanes : int
        Multiply-adds of float32 that a multiprocessor issues in a cycle.
    tensor : int
        Multiply-adds of float16, accumulated in float32, that the tensor cores of a multiprocessor do in a cycle.
    shared_per_block, shared_per_multiprocessor : int
        Bytes of shared memory: the most of one block, and of all that are resident.
    threads_per_multiprocessor, blocks_per_multiprocessor : int
        The most that are resident.
    registers : int
        32-bit registers of a multiprocessor; a thread has 255 at most.
    mma_share : float
        Part of the rate of the tensor cores that ``mma.sync`` reaches; Hopper's rest is for ``wgmma`` (Luo et al.,
        "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024, section IV).
    launch_seconds : float
        From one kernel to the next in a stream.
    """

    name: str
    compute: int
    multiprocessors: int
    clock: float
    bandwidth: float
    l2: int
    lanes: int
    tensor: int
    l2_bandwidth: float = 0.0
    shared_per_block: int = 48 << 10
    shared_per_multiprocessor: int = 64 << 10
    threads_per_multiprocessor: int = 2048
    blocks_per_multiprocessor: int = 32
    registers: int = 64 << 10
    mma_share: float = 1.0
    launch_seconds: float = 3e-6

    @property
    def flops(self) -> float:
        """Multiplications and additions of float32 a second."""
        return 2.0 * self.multiprocessors * self.lanes * self.clock

    @property
    def mma(self) -> float:
        """Multiply-adds of float16 in a cycle of a multiprocessor by ``mma.sync``.

        Since sm_90 the full rate is that of other instructions (``wgmma``, ``tcgen05``), which take their operands from
        shared memory; an H100 was measured at 0.59 of it.
        """
        return 0.59 * self.tensor if 90 <= self.compute < 120 else float(self.tensor)

    @property
    def has_async_copy(self) -> bool:
        """Whether shared memory is filled by ``cp.async``, and matrices are multiplied by ``mma`` of depth 16."""
        return self.compute >= 80

    @property
    def has_warpgroups(self) -> bool:
        """Whether four warps together multiply tiles of shared memory (``wgmma``), which Hopper alone does."""
        return self.compute == 90


WARP = 32
"""Threads that run in step."""

MOST_THREADS = 1024
"""Threads of a block."""

REGISTERS = 64 << 10
"""32-bit registers of a multiprocessor, and the most of one block."""

STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may declare statically."""

MOST_GRID = (2**31 - 1, 65535, 65535)
"""Blocks along x, y and z."""


@dataclass(frozen=True)
class Limits:
    """What an architecture allows: shared memory of a block and a multiprocessor (KiB), resident threads and blocks."""

    shared_per_block: int
    shared_per_multiprocessor: int
    threads: int
    blocks: int


LIMITS: dict[int, Limits] = {
    75: Limits(64, 64, 1024, 16),
    80: Limits(163, 164, 2048, 32),
    86: Limits(99, 100, 1536, 16),
    87: Limits(163, 164, 1536, 16),
    89: Limits(99, 100, 1536, 24),
    90: Limits(227, 228, 2048, 32),
    100: Limits(227, 228, 2048, 32),
    103: Limits(227, 228, 2048, 32),
    120: Limits(99, 100, 1536, 24),
}
"""By compute capability."""


def _row(
    name: str, compute: int, units: int, gigahertz: float, gigabytes: float, l2: float, lanes: int, tensor: int
) -> GpuMachine:
    limits = LIMITS[compute]
    clock = gigahertz * 1e9
    return GpuMachine(
        name, compute, units, clock, gigabytes * 1e9, int(l2 * 2**20), lanes, tensor,
        # A multiprocessor takes 64 bytes a cycle from the L2 cache, until the cache itself is busy: about two thirds.
        l2_bandwidth=units * 64 * clock * 2 / 3,
        shared_per_block=limits.shared_per_block << 10,
        shared_per_multiprocessor=limits.shared_per_multiprocessor << 10,
        mma_share=0.62 if compute == 90 else 1.0,
        threads_per_multiprocessor=limits.threads, blocks_per_multiprocessor=limits.blocks,
    )  # fmt: skip


PRODUCTS: tuple[GpuMachine, ...] = (
    # name, compute capability, multiprocessors, GHz, GB/s, MiB of L2, float32 lanes, tensor multiply-adds
    _row("t4", 75, 40, 1.590, 320, 4, 64, 512),
    _row("a100", 80, 108, 1.410, 2039, 40, 64, 1024),
    _row("a10", 86, 72, 1.695, 600, 6, 128, 512),
    _row("rtx-3090", 86, 82, 1.695, 936, 6, 128, 256),
    _row("orin", 87, 16, 1.300, 204.8, 4, 128, 512),
    _row("l4", 89, 58, 2.040, 300, 48, 128, 512),
    _row("rtx-4090", 89, 128, 2.520, 1008, 72, 128, 256),
    _row("h100", 90, 132, 1.830, 3350, 50, 128, 2048),
    _row("h200", 90, 132, 1.830, 4800, 50, 128, 2048),
    _row("b200", 100, 148, 1.850, 8000, 126, 128, 4096),
    _row("b300", 103, 148, 1.920, 8000, 126, 128, 4096),
    _row("rtx-5090", 120, 170, 2.407, 1792, 96, 128, 256),
)
"""Those that have a target tag ``nvidia/NAME``; the first of an architecture stands for it."""


def machine_of(target: tvm.target.Target | None = None) -> GpuMachine:
    """Describe the GPU of a CUDA target: the product it names as its ``model``, or one of its architecture.

    Without a target it is the current one.

    What a target says of threads and shared memory besides is compared with this when it is completed.
    """
    target = target or tvm.target.Target.current(allow_none=False)
    model = str(target.attrs.get("model", ""))
    compute = compute_capability(str(target.attrs.get("arch", "")))
    for row in PRODUCTS:
        if row.name == model and row.compute == compute:
            return row
    known = max((key for key in LIMITS if key <= compute), default=min(LIMITS))
    row = next(row for row in PRODUCTS if row.compute == known)
    return row if row.compute == compute else replace(row, compute=compute)


def compute_capability(arch: str) -> int:
    """Read ``sm_90a`` as 90; 0 for anything else."""
    number = arch.removeprefix("sm_").rstrip("af")
    return int(number) if arch.startswith("sm_") and number.isdigit() else 0
