"""The rows. Figures of cost: Intel, Arm and NVIDIA optimisation manuals, and the Hexagon V68 HVX reference."""

from __future__ import annotations

from tvm_ext.schedules.instructions.emit import (
    dot_product,
    fused_multiply_add,
    matrix_product,
    tile_product,
    widening_multiply_add,
)
from tvm_ext.schedules.instructions.instruction import Instruction, multiply_add
from tvm_ext.system.tiles import request_tiles

VECTORS = ("global", "global", "local")
"""Factors come from memory, sums stay in registers."""


def vta_gemm(batch: int, block: int) -> Instruction:
    """One step of VTA's matrix unit, of a configuration with so many rows and so many channels."""
    return Instruction(
        name=f"vta.gemm.{batch}x{block}x{block}",
        meaning=multiply_add("C[x,y] += A[x,z] * B[y,z]", "int8", "int8", "int32", x=batch, y=block, z=block),
        implementation="GEMM", emit=None, requires=("vta",),
        homes=("local.vta_inp", "local.vta_wgt", "local.vta_acc"), cycles=1,
    )  # fmt: skip


def fma(bits: int, broadcast: bool) -> Instruction:
    """One fused multiply-add of a vector of float32, the left factor in all lanes or a lane of its own."""
    lanes, left = bits // 32, "" if broadcast else "i"
    return Instruction(
        name=f"x86.fma.{bits}{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i]", "float32", "float32", "float32", i=lanes),
        implementation=f"llvm.fma.v{lanes}f32", emit=fused_multiply_add(lanes, broadcast),
        requires=("avx512f" if bits == 512 else "fma",), homes=VECTORS, cycles=0.5, latency=4,
    )  # fmt: skip


def mulps(broadcast: bool) -> Instruction:
    """SSE: a multiplication and an addition of four float32, the left factor in all lanes or a lane of its own."""
    left = "" if broadcast else "i"
    return Instruction(
        name=f"x86.mulps{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i]", "float32", "float32", "float32", i=4),
        implementation="mulps, addps", emit=widening_multiply_add("float32", "float32", "float32", 4, broadcast),
        requires=("sse2",), homes=VECTORS, cycles=1, latency=8,
    )  # fmt: skip


def fma_of_four(family: str, mnemonic: str, feature: str, broadcast: bool) -> Instruction:
    """One fused multiply-add of four float32 on Arm or RISC-V, as LLVM makes it of its own intrinsic."""
    left = "" if broadcast else "i"
    return Instruction(
        name=f"{family}.{mnemonic}{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i]", "float32", "float32", "float32", i=4),
        implementation="llvm.fma.v4f32", emit=fused_multiply_add(4, broadcast),
        requires=(feature,), homes=VECTORS, cycles=0.5, latency=4,
    )  # fmt: skip


def widening_of_four(family: str, mnemonic: str, feature: str, broadcast: bool) -> Instruction:
    """One product of 16-bit integers in each of four int32 lanes, on Arm or RISC-V without dot products."""
    left = "" if broadcast else "i"
    return Instruction(
        name=f"{family}.{mnemonic}{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i]", "int16", "int16", "int32", i=4),
        implementation=mnemonic, emit=widening_multiply_add("int16", "int16", "int32", 4, broadcast),
        requires=(feature,), homes=VECTORS, cycles=1, latency=4,
    )  # fmt: skip


FMLA, SMLAL = (tuple(row("arm", name, "neon", broadcast) for broadcast in (True, False))
               for row, name in ((fma_of_four, "fmla"), (widening_of_four, "smlal")))  # fmt: skip
VFMACC, VWMACC = (tuple(row("riscv", name, "v", broadcast) for broadcast in (True, False))
                  for row, name in ((fma_of_four, "vfmacc"), (widening_of_four, "vwmacc")))  # fmt: skip
"""For vectors of 128 bits, which every RISC-V CPU with vectors has at least; both LLVM and the rows count in these."""


def vpdpbusd(bits: int, broadcast: bool) -> Instruction:
    """AVX-512 VNNI: four products of an unsigned and a signed byte, added to each int32 lane."""
    lanes, left = bits // 32, "k" if broadcast else "i,k"
    name = f"llvm.x86.avx512.vpdpbusd.{bits}"
    return Instruction(
        name=f"x86.vpdpbusd.{bits}{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i,k]", "uint8", "int8", "int32", i=lanes, k=4),
        implementation=name, emit=dot_product(name, "uint8", "int8", lanes, 4, broadcast),
        requires=("avx512vnni",), homes=VECTORS, cycles=0.5, latency=5,
    )  # fmt: skip


def vpdpwssd(bits: int, broadcast: bool) -> Instruction:
    """AVX-512 VNNI: two products of 16-bit integers, added to each int32 lane."""
    lanes, left = bits // 32, "k" if broadcast else "i,k"
    name = f"llvm.x86.avx512.vpdpwssd.{bits}"
    return Instruction(
        name=f"x86.vpdpwssd.{bits}{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i,k]", "int16", "int16", "int32", i=lanes, k=2),
        implementation=name, emit=dot_product(name, "int16", "int16", lanes, 2, broadcast),
        requires=("avx512vnni",), homes=VECTORS, cycles=0.5, latency=5,
    )  # fmt: skip


def pmaddwd(bits: int, broadcast: bool) -> Instruction:
    """SSE2, AVX2 or AVX-512: two products of 16-bit integers added up, then added to each int32 lane."""
    lanes, left = bits // 32, "k" if broadcast else "i,k"
    names = {128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}
    name = names[bits]
    return Instruction(
        name=f"x86.pmaddwd.{bits}{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i,k]", "int16", "int16", "int32", i=lanes, k=2),
        implementation=name, emit=dot_product(name, "int16", "int16", lanes, 2, broadcast, extends=False),
        requires=({128: "sse2", 256: "avx2", 512: "avx512bw"}[bits],), homes=VECTORS, cycles=1, latency=6,
    )  # fmt: skip


def amx(left: str, right: str) -> Instruction:
    """Intel AMX on whole tiles; the right factor is stored in groups of so many rows as make 32 bits."""
    pack = 2 if left == "bfloat16" else 4
    name = {"uint8": "tdpbusd", "int8": "tdpbssd", "bfloat16": "tdpbf16ps"}[left]
    result = "float32" if pack == 2 else "int32"
    return Instruction(
        name=f"x86.amx.{name}",
        meaning=multiply_add("C[i,j] += A[i,q,r] * B[q,j,r]", left, right, result, i=16, j=16, q=16, r=pack),
        implementation=f"llvm.x86.{name}", emit=tile_product(name, left, right, result, pack),
        requires=("amx-tile", "amx-bf16" if pack == 2 else "amx-int8"), homes=("global", "global", "global"),
        cycles=16, latency=52, tiles=True, prepare=request_tiles,
    )  # fmt: skip


def sdot(broadcast: bool) -> Instruction:
    """Arm dot product: four products of signed bytes, added to each of four int32 lanes."""
    left, name = "k" if broadcast else "i,k", "llvm.aarch64.neon.sdot.v4i32.v16i8"
    return Instruction(
        name=f"arm.sdot{'' if broadcast else '.lanes'}",
        meaning=multiply_add(f"C[i] += A[{left}] * B[i,k]", "int8", "int8", "int32", i=4, k=4),
        implementation=name, emit=dot_product(name, "int8", "int8", 4, 4, broadcast),
        requires=("dotprod",), homes=VECTORS, cycles=0.5, latency=3,
    )  # fmt: skip


SMMLA = Instruction(
    name="arm.smmla",
    meaning=multiply_add("C[i,j] += A[i,k] * B[j,k]", "int8", "int8", "int32", i=2, j=2, k=8),
    implementation="llvm.aarch64.neon.smmla.v4i32.v16i8",
    emit=matrix_product("llvm.aarch64.neon.smmla.v4i32.v16i8", 2, 2, 8),
    requires=("i8mm",), homes=VECTORS, cycles=0.5, latency=3,
)  # fmt: skip

DP4A = Instruction(
    name="cuda.dp4a",
    meaning=multiply_add("C[] += A[k] * B[k]", "int8", "int8", "int32", k=4),
    implementation="__dp4a", emit=None, requires=("sm_61",), homes=("local", "local", "local"), cycles=0.5, latency=4,
)  # fmt: skip

MMA_M16N8K16 = Instruction(
    name="cuda.mma.m16n8k16.f16",
    meaning=multiply_add("C[i,j] += A[i,k] * B[j,k]", "float16", "float16", "float32", i=16, j=8, k=16),
    implementation="mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", emit=None,
    requires=("sm_80",), homes=("warp", "warp", "warp"), cycles=16, latency=33,
)  # fmt: skip

MMA_M16N8K32 = Instruction(
    name="cuda.mma.m16n8k32.s8",
    meaning=multiply_add("C[i,j] += A[i,k] * B[j,k]", "int8", "int8", "int32", i=16, j=8, k=32),
    implementation="mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", emit=None,
    requires=("sm_80",), homes=("warp", "warp", "warp"), cycles=16, latency=33,
)  # fmt: skip

# Of up to 256 columns; both factors are read from shared memory. One warpgroup has all four tensor cores.
WGMMA_M64N128K16 = Instruction(
    name="cuda.wgmma.m64n128k16.f16",
    meaning=multiply_add("C[i,j] += A[i,k] * B[j,k]", "float16", "float16", "float32", i=64, j=128, k=16),
    implementation="wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", emit=None,
    requires=("sm_90a",), homes=("shared", "shared", "warp"), cycles=64, latency=128,
)  # fmt: skip

# Scalars of four bytes; pairs of vectors take even bytes (p = 0) and odd bytes (p = 1) apart.
VRMPY = Instruction(
    name="hexagon.vrmpy",
    meaning=multiply_add("C[i] += A[i,k] * B[k]", "uint8", "int8", "int32", i=32, k=4),
    implementation="llvm.hexagon.V6.vrmpybus.acc.128B", emit=None,
    requires=("hvx",), homes=("vector", "scalar", "vector"), cycles=1, latency=4,
)  # fmt: skip

VMPY = Instruction(
    name="hexagon.vmpy",
    meaning=multiply_add("C[p,q,r] += A[q,r,p] * B[r,p]", "uint8", "int8", "int16", p=2, q=32, r=2),
    implementation="llvm.hexagon.V6.vmpybus.acc.128B", emit=None,
    requires=("hvx",), homes=("vector", "scalar", "vector pair"), cycles=1, latency=4,
)  # fmt: skip

VMPY_SPLAT = Instruction(
    name="hexagon.vmpy.splat",
    meaning=multiply_add("C[p,m] += A[m,p] * B[]", "uint8", "int8", "int16", p=2, m=64),
    implementation="llvm.hexagon.V6.vmpybus.acc.128B", emit=None,
    requires=("hvx",), homes=("vector", "scalar", "vector pair"), cycles=1, latency=4,
)  # fmt: skip

VMPA = Instruction(
    name="hexagon.vmpa",
    meaning=multiply_add("C[p,m] += A[k,m,p] * B[p,k]", "uint8", "int8", "int16", p=2, m=64, k=2),
    implementation="llvm.hexagon.V6.vmpabus.acc.128B", emit=None,
    requires=("hvx",), homes=("vector pair", "scalar", "vector pair"), cycles=1, latency=4,
)  # fmt: skip

# Sums of 16 bits do not last: two products of bytes may fill them. These widen what they add up to words at once.
VMPA_WORDS = Instruction(
    name="hexagon.vmpa.words",
    meaning=multiply_add("C[h,i] += A[k,i,h,p] * B[p,k]", "uint8", "int8", "int32", h=2, i=32, k=2, p=2),
    implementation="llvm.hexagon.V6.vmpabus.128B, llvm.hexagon.V6.vaddhw.acc.128B", emit=None,
    requires=("hvx",), homes=("vector pair", "scalar", "vector pair"), cycles=2, latency=6,
)  # fmt: skip

VMPY_WORDS = Instruction(
    name="hexagon.vmpy.words",
    meaning=multiply_add("C[p,h,i] += A[k,i,h,p] * B[k]", "uint8", "int8", "int32", p=2, h=2, i=32, k=2),
    implementation="llvm.hexagon.V6.vmpybus.128B, llvm.hexagon.V6.vaddhw.acc.128B", emit=None,
    requires=("hvx",), homes=("vector pair", "scalar", "vector pairs"), cycles=4, latency=6,
)  # fmt: skip

ROWS: tuple[Instruction, ...] = (
    *(vta_gemm(batch, block) for batch, block in ((1, 16), (1, 32), (2, 16), (4, 8), (8, 8))),
    *(row(bits, broadcast) for row in (fma, vpdpbusd, vpdpwssd, pmaddwd) for bits in (512, 256)
      for broadcast in (True, False)),
    *(row for broadcast in (True, False) for row in (mulps(broadcast), pmaddwd(128, broadcast))),
    *FMLA, *SMLAL, *VFMACC, *VWMACC,
    amx("int8", "int8"), amx("uint8", "int8"), amx("bfloat16", "bfloat16"),
    sdot(True), sdot(False), SMMLA, DP4A, MMA_M16N8K16, MMA_M16N8K32, WGMMA_M64N128K16, VRMPY, VMPY, VMPY_SPLAT,
    VMPA, VMPA_WORDS, VMPY_WORDS,
)  # fmt: skip
"""All rows; ``tvm-ext embed`` and the tests go through them."""
