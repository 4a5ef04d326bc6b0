"""What is known of CPUs that code is often made for on another machine: caches, cores, multiply-adds a second.

Caches and units are those of the vendors' optimisation guides and data sheets (of Apple's, published measurements);
bytes from the L2 cache were measured on Zen 5 and Sapphire Rapids, and are half of the guide's figure on Zen 4.
Cores are those of the usual board, 0 where there is no usual one; of cores of two kinds the fast ones count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownCpu:
    """Figures of a CPU.

    Attributes
    ----------
    l1, l2, l3 : int
        Data cache sizes in KiB: of one core, its part of the L2 cache, and the last cache that cores share.
    clock : float
        Cycles a second.
    units : int
        Vectors that are multiplied and added in a cycle.
    cores : int
        Physical cores.
    l2_bytes : int
        Bytes a cycle that a core reads from its L2 cache while it multiplies; 0: as any CPU of its instruction set.
    memory_bandwidth : float
        Bytes a second that two cores together move between memory and registers; 0: as any CPU of its instruction set.
    free_loads : int
        Loads beside six multiply-adds of vectors that take no time of their own; 0: however many there are.
    slow_load : float
        Multiply-adds that a load which is not free takes the place of.
    far_bytes : int
        Bytes that arrive from the L2 cache in a cycle without being in the way of the multiply-adds.
    strip : int
        Elements that a strip of tiles which transpose has at most; 0: as many as the second TLB has pages for.
    joins_parts : bool
        Whether halves of lines that are stored past the caches by several rows in turn leave as whole lines: measured
        with AVX2 on Zen 3, but not on Ice Lake, where images of 64 channels take 4.6 times as long so.
    fetches_once : bool
        Whether non-temporal fetches of what several cores read once are faster: measured, transposes of 64 MiB take
        0.88 to 0.95 of the time on two cores of Zen 5, those of 16 MiB 0.97 to 1.00; on one core up to 1.06.
    fetches_near : bool
        Whether the L1 cache waits for enough lines at a time that what comes from memory is best fetched into it; else
        into the L2 cache. Measured, layer norm of 64 MiB takes 0.91 to 0.93 of the time so on two cores of Zen 5, and
        1.05 to 1.11 on Zen 4, softmax 0.86 to 0.99 and 1.08 to 1.15; on one core 0.93 to 1.01, and 1.00 to 1.07.
    """

    l1: int
    l2: int
    l3: int
    clock: float
    units: int
    cores: int = 0
    l2_bytes: int = 0
    memory_bandwidth: float = 0.0
    free_loads: int = 0
    slow_load: float = 0.8
    far_bytes: int = 16
    strip: int = 0
    joins_parts: bool = False
    fetches_once: bool = False
    fetches_near: bool = False


_APPLE = KnownCpu(128, 3 << 10, 8 << 10, 3.2e9, 4, 4)

# LLVM's name for the CPU, and where it is met.
KNOWN_CPUS: Mapping[str, KnownCpu] = {
    "cortex-a53": KnownCpu(32, 128, 512, 1.4e9, 1, 4),  # Raspberry Pi 3
    "cortex-a72": KnownCpu(32, 256, 1 << 10, 1.5e9, 1, 4),  # Raspberry Pi 4
    "cortex-a76": KnownCpu(64, 512, 2 << 10, 2.4e9, 2, 4),  # Raspberry Pi 5
    "neoverse-n1": KnownCpu(64, 1 << 10, 32 << 10, 2.5e9, 2),  # Graviton2, Ampere Altra
    "neoverse-v1": KnownCpu(64, 1 << 10, 32 << 10, 2.6e9, 4),  # Graviton3
    "neoverse-n2": KnownCpu(64, 1 << 10, 32 << 10, 2.7e9, 2),  # Cobalt 100, Axion N
    "neoverse-v2": KnownCpu(64, 2 << 10, 36 << 10, 2.8e9, 4),  # Graviton4, Grace, Axion
    "grace": KnownCpu(64, 1 << 10, 114 << 10, 3.1e9, 4),
    # Servers with AVX-512: the clock is that of all cores in vectors of 512 bits, the last cache that of a usual part.
    "skylake-avx512": KnownCpu(
        32, 1 << 10, 27 << 10, 2.4e9, 2, l2_bytes=48, free_loads=3, strip=32
    ),  # Xeon Scalable, first generation
    "cascadelake": KnownCpu(32, 1 << 10, 27 << 10, 2.6e9, 2, l2_bytes=48, free_loads=3, strip=32),
    "cooperlake": KnownCpu(32, 1 << 10, 38 << 10, 2.8e9, 2, l2_bytes=48, free_loads=3, strip=32),
    "icelake-server": KnownCpu(
        48, 1280, 48 << 10, 2.8e9, 2, 0, 30, memory_bandwidth=36e9, free_loads=3, slow_load=2.0, far_bytes=32, strip=32
    ),
    "sapphirerapids": KnownCpu(48, 2 << 10, 105 << 10, 3.0e9, 2, l2_bytes=48, free_loads=3, strip=32),
    "emeraldrapids": KnownCpu(48, 2 << 10, 320 << 10, 3.0e9, 2, l2_bytes=48, free_loads=3, strip=32),
    "graniterapids": KnownCpu(48, 2 << 10, 480 << 10, 3.0e9, 2, l2_bytes=48, free_loads=3, strip=32),
    # Cores of the fast kind, in vectors of 256 bits.
    "alderlake": KnownCpu(48, 1280, 30 << 10, 4.5e9, 2),
    "raptorlake": KnownCpu(48, 2 << 10, 36 << 10, 5.0e9, 2),
    "meteorlake": KnownCpu(48, 2 << 10, 24 << 10, 4.5e9, 2),
    "arrowlake": KnownCpu(48, 3 << 10, 36 << 10, 5.0e9, 2),
    "znver2": KnownCpu(
        32, 512, 16 << 10, 3.2e9, 2, l2_bytes=29, memory_bandwidth=30e9, free_loads=5, joins_parts=True
    ),  # EPYC 7002
    "znver3": KnownCpu(
        32, 512, 32 << 10, 3.3e9, 2, l2_bytes=29, memory_bandwidth=30e9, free_loads=5, joins_parts=True
    ),  # EPYC 7003
    "znver4": KnownCpu(
        32, 1 << 10, 32 << 10, 3.7e9, 1, l2_bytes=32, joins_parts=True
    ),  # EPYC 9004: vectors of 512 bits in halves
    "znver5": KnownCpu(  # EPYC 9005
        48,
        1 << 10,
        32 << 10,
        4.0e9,
        2,
        l2_bytes=54,
        memory_bandwidth=48e9,
        fetches_once=True,
        fetches_near=True,
        joins_parts=True,
    ),
    **dict.fromkeys(("apple-m1", "apple-a14", "apple-m2", "apple-a15", "apple-m3", "apple-a16", "apple-m4"), _APPLE),
}
