"""How long a kernel takes on a GPU: occupancy, bytes, issue of instructions, and the blocks of the last wave.

After the roofline model (Williams et al., CACM 2009), with what limits small kernels besides: too few warps to hide
latency (Volkov, UCB/EECS-2016-143, section 4: Little's law), and a grid that is no multiple of what runs at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.schedules.cuda.machine import WARP, GpuMachine

HIDING_WARPS = 12
"""Resident warps of a multiprocessor from which on arithmetic with two independent instructions a warp is at its rate:
four schedulers, six cycles of latency."""

BYTES_IN_FLIGHT = 600e-9
"""Seconds that device memory takes to answer; bandwidth times this must be under way to use all of it."""

BLOCK_SECONDS = 1.0e-6
"""Start and end of a block: addresses, the first loads, the last stores."""


@dataclass(frozen=True)
class Launch:
    """A kernel as the cost model sees it.

    Attributes
    ----------
    blocks, threads : int
        Blocks of the grid, threads of a block.
    registers : int
        32-bit registers of a thread.
    shared : int
        Bytes of shared memory of a block.
    issue : float
        Warp instructions of all kinds of one block.
    tensor : float
        Multiply-adds of one block on tensor cores.
    bytes : float
        From and to device memory, of the whole kernel.
    l2_bytes : float
        Between L2 cache and multiprocessors, of the whole kernel.
    in_flight : float
        Bytes that a thread has requested at a time.
    chain : float
        Cycles that a block takes when it is alone, as each of its instructions waits for those before; 0 where that
        is not known, and warps enough are what hides it.
    """

    blocks: int
    threads: int
    registers: int = 32
    shared: int = 0
    issue: float = 0.0
    tensor: float = 0.0
    bytes: float = 0.0
    l2_bytes: float = 0.0
    in_flight: float = 16.0
    chain: float = 0.0


def resident_blocks(launch: Launch, machine: GpuMachine) -> int:
    """Count the blocks that one multiprocessor holds at a time; 0 if a block does not fit at all.

    Registers are given to warps in units of 256, shared memory in units of 1 KiB, one of which is the system's.
    """
    if launch.threads > 1024 or launch.registers > 255 or launch.shared > machine.shared_per_block:
        return 0
    warps = -(-launch.threads // WARP)
    per_warp = -(-launch.registers * WARP // 256) * 256
    by_registers = machine.registers // (per_warp * warps)
    system = 1024 if machine.compute >= 80 else 0
    shared = -(-launch.shared // 1024) * 1024 + system
    by_shared = machine.shared_per_multiprocessor // shared if launch.shared else machine.blocks_per_multiprocessor
    by_threads = machine.threads_per_multiprocessor // (warps * WARP)
    return min(by_registers, by_shared, by_threads, machine.blocks_per_multiprocessor)


def kernel_seconds(launch: Launch, machine: GpuMachine) -> float:
    """Estimate the seconds of a kernel; infinite if it does not fit."""
    resident = resident_blocks(launch, machine)
    if resident == 0 or launch.blocks == 0:
        return float("inf")
    at_once = resident * machine.multiprocessors
    full, rest = divmod(launch.blocks, at_once)
    computing = full * _wave(launch, resident, machine)
    if rest:
        computing += _wave(launch, -(-rest // machine.multiprocessors), machine)
    running = min(launch.blocks, at_once)
    requested = running * launch.threads * launch.in_flight
    device = min(machine.bandwidth, requested / BYTES_IN_FLIGHT)
    busy = min(1.0, launch.blocks / machine.multiprocessors)
    moving = max(launch.bytes / device, launch.l2_bytes / (machine.l2_bandwidth * busy))
    return machine.launch_seconds + max(computing, moving) + BLOCK_SECONDS


def _wave(launch: Launch, blocks: int, machine: GpuMachine) -> float:
    """Seconds in which a multiprocessor computes so many blocks side by side."""
    warps = blocks * -(-launch.threads // WARP)
    # Four schedulers issue an instruction of a warp each; with 64 lanes an instruction of float32 takes two cycles.
    issue = blocks * launch.issue / (machine.lanes / WARP)
    tensor = blocks * launch.tensor / (machine.tensor * machine.mma_share)
    if launch.chain:
        return max(issue + tensor, launch.chain) / machine.clock
    return (issue + tensor) / min(1.0, warps / HIDING_WARPS) / machine.clock
