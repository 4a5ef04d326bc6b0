"""Convolutions by Halide for HVX (`pip install halide`), as functions of pointers that our runtime calls.

Halide is given every advantage that we know of: operands are padded, weights packed for vrmpy, and the result is sums
in int32, which are not rescaled. The schedule is the one that its own quantised convolutions have: sums of a tile of
pixels and vectors of channels in registers, four channels at a time.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.backends.hexagon.code import assemble
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.backends.hexagon.toolchain import CLANG, compile_flags, program

PROCESSOR = "hexagonv67"
TARGET = "hexagon-32-noos-no_runtime-no_asserts-no_bounds_query-hvx_128-hvx_v66"
TILES = tuple(itertools.product((1, 2, 4), (1, 2, 4, 7)))
"""Vectors of channels, and pixels, that are computed together: all are tried, and the best is taken."""

_WRAPPER = r"""
typedef unsigned long long u64;
typedef struct { int min, extent, stride; unsigned flags; } Dimension;
typedef struct {
  u64 device; void *interface; void *host; u64 flags; unsigned char code, bits; unsigned short lanes;
  int dimensions; Dimension *dimension; void *padding;
} Buffer;
int halide_convolution(Buffer *, Buffer *, Buffer *);
int qurt_hvx_lock(int mode) { return 0; }
int qurt_hvx_unlock(void) { return 0; }
void *halide_malloc(void *context, unsigned long size) { return 0; }
void halide_free(void *context, void *pointer) {}
static unsigned char heap[1 << 16] __attribute__((aligned(128)));
static unsigned used;
void *malloc(unsigned long size) { unsigned at = used; used += (size + 127) & ~127u; return heap + at; }
void free(void *pointer) {}
char *halide_string_to_string(char *to, char *end, const char *from) { return to; }
int halide_msan_annotate_memory_is_initialized(void *context, const void *pointer, u64 size) { return 0; }
void halide_error(void *context, const char *message) {}
void convolution(void *data, void *weight, void *result) {
  Dimension d[] = {%s}, w[] = {%s}, r[] = {%s};
  Buffer x = {0, 0, data, 0, 1, 8, 1, 3, d, 0}, y = {0, 0, weight, 0, 0, 8, 1, 5, w, 0};
  Buffer z = {0, 0, result, 0, 0, 32, 1, 3, r, 0};
  halide_convolution(&x, &y, &z);
}
"""


def best_packets(extent: int, depth: int, columns: int, kernel: int, stride: int) -> tuple[int, tuple[int, int]]:
    """Count the packets of a convolution with the best tile; gives them and the tile.

    Raises
    ------
    SystemExit
        If a result is wrong.
    """
    found = {}
    out = (extent + 2 * (kernel // 2) - kernel) // stride + 1
    for vectors, pixels in TILES:
        if columns % (32 * vectors) == 0 and out % pixels == 0 and vectors * pixels <= 16:
            found[vectors, pixels] = _packets(extent, depth, columns, kernel, stride, vectors, pixels)
    tile = min(found, key=lambda item: found[item])
    return found[tile], tile


def _packets(extent: int, depth: int, columns: int, kernel: int, stride: int, vectors: int, pixels: int) -> int:
    pad, quads = kernel // 2, -(-depth // 4)
    side, out = extent + 2 * pad, (extent + 2 * pad - kernel) // stride + 1
    shapes = (4 * quads, side, side), (4, columns, quads, kernel, kernel), (columns, out, out)
    with tempfile.TemporaryDirectory(prefix="tvm-ext-halide-") as name:
        folder = Path(name)
        _compile(folder / "halide.s", shapes, kernel, stride, vectors, pixels)
        (folder / "wrapper.c").write_text(_WRAPPER % tuple(map(_dimensions, shapes)), encoding="utf-8")
        command = [program(CLANG), *compile_flags(PROCESSOR), "-w", "-S", "wrapper.c", "-o", "wrapper.s"]
        subprocess.run(command, cwd=folder, check=True)
        texts = [(folder / file).read_text(encoding="utf-8") for file in ("halide.s", "wrapper.s")]
    random = np.random.default_rng(0)
    data = np.zeros((side, side, 4 * quads), np.uint8)
    data[pad : side - pad, pad : side - pad, :depth] = random.integers(0, 256, (extent, extent, depth))
    weight = random.integers(-128, 128, (kernel, kernel, quads, columns, 4)).astype(np.int8)
    script = Script(assemble(texts, ["convolution"], PROCESSOR))
    places = [script.array(data), script.array(weight), script.allocate(4 * out * out * columns)]
    script.call("convolution", places)
    script.read(places[2], 4 * out * out * columns)
    (counts,), (content,) = script.run()
    expected = np.zeros((out, out, columns), np.int32)
    matrices = weight.transpose(0, 1, 2, 4, 3).reshape(kernel, kernel, 4 * quads, columns).astype(np.float32)
    for row, column in itertools.product(range(kernel), repeat=2):
        part = data[row : row + stride * out : stride, column : column + stride * out : stride][:out, :out]
        expected += np.rint(part.astype(np.float32) @ matrices[row, column]).astype(np.int32)
    if not (np.frombuffer(content, np.int32).reshape(expected.shape) == expected).all():
        raise SystemExit(f"Halide's convolution of {shapes} is wrong")
    return counts.packets


def _dimensions(shape: tuple[int, ...]) -> str:
    strides = np.cumprod([1, *shape[:-1]])
    return ", ".join(f"{{0, {extent}, {stride}, 0}}" for extent, stride in zip(shape, strides, strict=True))


def _compile(
    path: Path, shapes: tuple[tuple[int, ...], ...], kernel: int, stride: int, vectors: int, pixels: int
) -> None:
    """Write assembly of the function ``halide_convolution(data, weight, result)``."""
    import halide as hl

    data, weight = hl.ImageParam(hl.UInt(8), 3, "data"), hl.ImageParam(hl.Int(8), 5, "weight")
    c, x, y, co, ci, xo, xi = (hl.Var(name) for name in ("c", "x", "y", "co", "ci", "xo", "xi"))
    cv, cl = hl.Var("cv"), hl.Var("cl")
    r = hl.RDom([(0, 4), (0, shapes[1][2]), (0, kernel), (0, kernel)])
    sums, result = hl.Func("sums"), hl.Func("halide_convolution")
    sums[c, x, y] = hl.i32(0)
    left = hl.i16(data[r[0] + 4 * r[1], x * stride + r[2], y * stride + r[3]])
    sums[c, x, y] += hl.i32(left * hl.i16(weight[r[0], c, r[1], r[2], r[3]]))
    result[c, x, y] = sums[c, x, y]
    for part, shape in ((data, shapes[0]), (weight, shapes[1]), (result.output_buffer(), shapes[2])):
        steps = np.cumprod([1, *shape[:-1]])
        part.set_host_alignment(128)
        for axis, extent in enumerate(shape):
            part.dim(axis).set_bounds(0, extent).set_stride(int(steps[axis]))
    result.split(c, co, ci, 32 * vectors).split(x, xo, xi, pixels).reorder(ci, xi, co, xo, y)
    result.split(ci, cv, cl, 32).vectorize(cl).unroll(cv).unroll(xi)
    sums.compute_at(result, co).split(c, cv, cl, 32).vectorize(cl).unroll(cv).unroll(x)
    update: Any = sums.update()
    update.split(c, cv, cl, 32).reorder(r[0], cl, cv, x, r[1], r[2], r[3])
    update.atomic().vectorize(r[0]).vectorize(cl).unroll(cv).unroll(x)
    result.compile_to_assembly(str(path), [data, weight], "halide_convolution", hl.Target(TARGET))
