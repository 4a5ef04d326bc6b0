"""The rule for matrix products, against numpy, and the choices it makes, against their definitions."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.matmul import MatmulShape, matmul, pack_columns, round_up, row_stride, uniform_rows
from tvm_ext.schedules.cpu.machine import ROWS, Machine, machine_of
from tvm_ext.schedules.cpu.matmul import (
    CACHE_WAYS,
    DIRECT_ROWS,
    PAGE,
    Matmul,
    MatmulTask,
    matmul_task,
    register_tile,
    tile_cost,
)
from tvm_ext.schedules.cpu.product import ProductExtents
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, ScheduleRule, apply_rules

TARGETS = {
    "native": native_target(),
    "avx2": tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2}),
    "sse4": tvm.target.Target({"kind": "llvm", "mcpu": "nehalem", "num-cores": 2}),
    "generic": tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1}),
}
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


@dataclass(frozen=True)
class Product:
    """A kernel to be tested: logical shapes, order of axes in memory, what follows the product."""

    data: tuple[int, ...]
    weight: tuple[int, ...]
    data_axes: tuple[int, ...] = ()
    weight_axes: tuple[int, ...] = ()
    out_axes: tuple[int, ...] = ()
    constant: bool = False
    epilogue: str = ""
    dtype: str = "float32"

    @property
    def shape(self) -> MatmulShape:
        return MatmulShape(self.data, self.weight)

    def kernel(self, target: tvm.target.Target) -> tuple[tirx.PrimFunc, int]:
        """Build the kernel as the graph pass would, and say into how many chunks a constant is to be packed."""
        machine, shape = machine_of(target), self.shape
        data_axes = self.data_axes or tuple(range(len(self.data)))
        weight_axes = self.weight_axes or tuple(range(len(self.weight)))
        out_axes = self.out_axes or tuple(range(len(shape.out)))
        lanes = machine.lanes(self.dtype)
        chunks = -(-shape.columns // lanes)
        row_bytes = row_stride(shape, data_axes) * tvm.DataType(self.dtype).bits // 8
        tile = register_tile(shape.rows, chunks, shape.reduction, row_bytes, machine)
        chunks = round_up(chunks, tile[1])
        data = te.placeholder(self._in_memory(self.data, data_axes), self.dtype, "data")
        packed = (*self.weight[:-2], chunks, shape.reduction, lanes)
        weight_shape = packed if self.constant else self._in_memory(self.weight, weight_axes)
        weight = te.placeholder(weight_shape, self.dtype, "weight")
        result = matmul(
            data, weight, self.data, self.weight, data_axes, () if self.constant else weight_axes, out_axes, tile,
            lanes, shape.rows % tile[0] != 0 or not uniform_rows(shape, data_axes),
        )  # fmt: skip
        extra = []
        if self.epilogue:
            extra, result = EPILOGUES[self.epilogue][0](result)
        return te.create_prim_func([data, weight, *extra, result]), chunks

    def arguments(self, chunks: int, lanes: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Draw operands, and compute the expected result in double precision."""
        generator = np.random.default_rng(prod(self.data) + prod(self.weight))
        data, weight = (generator.standard_normal(shape).astype(self.dtype) for shape in (self.data, self.weight))
        expected = np.matmul(data.astype("float64"), weight.astype("float64"))
        expected = expected.transpose(self.out_axes or range(expected.ndim))
        operands = [
            self._laid_out(data, self.data_axes),
            pack_columns(weight, lanes, chunks) if self.constant else self._laid_out(weight, self.weight_axes),
        ]
        if self.epilogue:
            _, shapes, compute = EPILOGUES[self.epilogue]
            extra = [generator.standard_normal(shape).astype(self.dtype) for shape in shapes(expected.shape)]
            expected = compute(expected, *extra)
            operands += extra
        return operands, expected

    @staticmethod
    def _in_memory(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[int]:
        return [shape[axes.index(axis)] for axis in range(len(shape))]

    @staticmethod
    def _laid_out(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.ascontiguousarray(array.transpose(np.argsort(axes))) if axes else array


def bias_relu(product: te.Tensor) -> tuple[list[te.Tensor], te.Tensor]:
    bias = te.placeholder(product.shape[-1:], product.dtype, "bias")
    added = te.compute(product.shape, lambda *i: product(*i) + bias[i[-1]], "added")
    return [bias], te.compute(product.shape, lambda *i: te.max(added(*i), tirx.const(0, product.dtype)), "relu")


def gelu_residual(product: te.Tensor) -> tuple[list[te.Tensor], te.Tensor]:
    """Two uses of the product, a function, and a second operand of full shape that has a producer of its own."""
    residual = te.placeholder(product.shape, product.dtype, "residual")
    doubled = te.compute(product.shape, lambda *i: residual(*i) * 2, "doubled")
    erf = te.compute(product.shape, lambda *i: te.erf(product(*i) * 0.5), "erf")
    gated = te.compute(product.shape, lambda *i: product(*i) * (1 + erf(*i)), "gated")
    return [residual], te.compute(product.shape, lambda *i: gated(*i) + doubled(*i), "sum")


def broadcast(product: te.Tensor) -> tuple[list[te.Tensor], te.Tensor]:
    """A sum with a larger tensor: the result has an axis that the product has not."""
    larger = te.placeholder((3, *product.shape), product.dtype, "larger")
    return [larger], te.compute(larger.shape, lambda n, *i: larger(n, *i) + product(*i), "sum")


def unit_axis(product: te.Tensor) -> tuple[list[te.Tensor], te.Tensor]:
    larger = te.placeholder((1, *product.shape), product.dtype, "larger")
    return [larger], te.compute(larger.shape, lambda n, *i: larger(n, *i) + product(*i), "sum")


def _erf(array: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf, otypes=["float64"])(array)


EPILOGUES = {
    "bias_relu": (bias_relu, lambda shape: [shape[-1:]], lambda y, b: np.maximum(y + b, 0)),
    "gelu_residual": (gelu_residual, lambda shape: [shape], lambda y, r: y * (1 + _erf(y * 0.5)) + 2 * r),
    "broadcast": (broadcast, lambda shape: [(3, *shape)], lambda y, x: x + y),
    "unit_axis": (unit_axis, lambda shape: [(1, *shape)], lambda y, x: x + y),
}


def scheduled(func: tirx.PrimFunc, target: tvm.target.Target, rule: ScheduleRule | None = None) -> tirx.PrimFunc:
    """Schedule a kernel with a rule, which must take it."""
    rule = rule or Matmul()
    func = apply_rules(func, target, [rule])
    assert func.attrs[RULE_ATTRIBUTE] == rule.name
    return func.with_attr("global_symbol", "main")


def check(product: Product, target: str = "native", rule: ScheduleRule | None = None) -> None:
    """Schedule a product, run it and compare it with numpy in double precision."""
    chosen = TARGETS[target]
    func, chunks = product.kernel(chosen)
    taken = apply_rules(func, chosen, [Matmul()])
    assert taken.attrs[RULE_ATTRIBUTE] == Matmul.name
    kernel = tvm.compile(vector_code()(tvm.IRModule({"main": taken.with_attr("global_symbol", "main")})), chosen)
    operands, expected = product.arguments(chunks, machine_of(chosen).lanes(product.dtype))
    result = tvm.runtime.tensor(np.full(expected.shape, np.nan, product.dtype))
    kernel(*map(tvm.runtime.tensor, operands), result)
    scale = np.sqrt(product.shape.reduction) + np.abs(expected).max()
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=TOLERANCE[product.dtype] * scale)


EXTENT = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129])


@settings(max_examples=12, deadline=None)
@given(
    m=EXTENT, k=EXTENT, n=EXTENT, constant=st.booleans(), transposed=st.booleans(),
    epilogue=st.sampled_from(["", "bias_relu", "gelu_residual"]), target=st.sampled_from(list(TARGETS)),
)  # fmt: skip
def test_awkward_extents(m: int, k: int, n: int, constant: bool, transposed: bool, epilogue: str, target: str) -> None:
    weight_axes = (1, 0) if transposed and not constant else ()
    check(Product((m, k), (k, n), (), weight_axes, (), constant, epilogue), target)


@settings(max_examples=12, deadline=None)
@given(data=st.data(), target=st.sampled_from(list(TARGETS)))
def test_batches_and_transposes(data: st.DataObject, target: str) -> None:
    extent = st.sampled_from([1, 2, 3, 5, 8, 17, 33])
    batch = data.draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    m, k, n = (data.draw(extent) for _ in range(3))

    def operand(*matrix: int) -> tuple[int, ...]:
        kept = batch[data.draw(st.integers(0, len(batch))) :]
        return (*(extent if data.draw(st.booleans()) else 1 for extent in kept), *matrix)

    shape = MatmulShape(operand(m, k), operand(k, n))
    axes = [tuple(data.draw(st.permutations(range(rank)))) for rank in (len(shape.data), len(shape.weight))]
    rows = data.draw(st.permutations(range(len(shape.out) - 1)))
    check(Product(shape.data, shape.weight, *axes, (*rows, len(shape.out) - 1)), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue: str, target: str) -> None:
    check(Product((2, 9, 33), (33, 50), constant=True, epilogue=epilogue), target)


@pytest.mark.parametrize(
    "product",
    [
        Product((1, 12, 64, 32), (1, 12, 32, 64), (0, 2, 1, 3), (0, 2, 3, 1), epilogue="bias_relu"),
        Product((1, 12, 64, 64), (1, 12, 64, 32), (), (0, 2, 1, 3), (0, 2, 1, 3)),
        Product((1, 128, 256), (256, 512), constant=True, epilogue="gelu_residual"),
        Product((1, 3000), (3000, 1000), constant=True),
        Product((24, 1024), (1024, 100), constant=True),
        Product((130, 40), (40, 300), dtype="float64", constant=True, epilogue="bias_relu"),
        Product((3, 5, 40), (3, 40, 16)),
    ],
    ids=["query-key", "probabilities-value", "dense", "vector", "pages", "double", "small-batch"],
)
def test_typical_products(product: Product) -> None:
    check(product)


@pytest.mark.parametrize("rows", [1, DIRECT_ROWS, DIRECT_ROWS + 1])
def test_few_rows_read_the_operand_where_it_lies(rows: int) -> None:
    lanes = machine_of(TARGETS["native"]).lanes("float32")
    product = Product((rows, 20), (20, 24 * lanes))
    schedule = Matmul().apply(product.kernel(TARGETS["native"])[0], TARGETS["native"])
    assert ("pack_columns" in schedule.mod["main"].script()) == (rows > DIRECT_ROWS)
    check(product)


@pytest.mark.parametrize("name", ["parallel", "serial"])
def test_only_large_products_are_divided(name: str) -> None:
    extent = {"parallel": 256, "serial": 16}[name]
    product = Product((extent, extent), (extent, extent), constant=True)
    schedule = Matmul().apply(product.kernel(TARGETS["avx2"])[0], TARGETS["avx2"])
    assert ("T.parallel" in schedule.mod["main"].script()) == (name == "parallel")


def test_accumulators_stay_in_registers() -> None:
    """Between the multiply-adds of the inner loop nothing is stored."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    func, _ = Product((48, 1000), (1000, 96), constant=True).kernel(target)
    scheduled = apply_rules(func, target, [Matmul()])
    module = tvm.compile(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), target).mod
    lines = module.inspect_source("asm").splitlines()
    blocks: list[list[str]] = [[]]
    for line in lines:
        blocks[-1].append(line)
        if "\tj" in line:
            blocks.append([])
    inner = max(blocks, key=lambda block: sum("vfmadd" in line for line in block))
    assert sum("vfmadd" in line for line in inner) >= 8
    assert not [line for line in inner if "vmov" in line and line.rstrip().endswith("(%rsp)")]


def test_other_kernels_are_declined() -> None:
    source = te.placeholder((8, 8), "float32", "source")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((8,), lambda i: te.sum(source[i, k], k), "total")
    assert Matmul().apply(te.create_prim_func([source, total]), TARGETS["native"]) is None


def test_a_second_result_is_declined() -> None:
    data, weight = te.placeholder((8, 8), "float32", "data"), te.placeholder((8, 8), "float32", "weight")
    product = matmul(data, weight, (8, 8), (8, 8), (0, 1), (0, 1), (0, 1), (8, 1), 8, False)
    shifted = te.compute((8, 8), lambda i, j: product[i, j] + 1, "shifted")
    doubled = te.compute((8, 8), lambda i, j: product[i, j] * 2, "doubled")
    func = te.create_prim_func([data, weight, shifted, doubled])
    assert Matmul().apply(func, TARGETS["native"]) is None


def test_a_following_reduction_is_declined() -> None:
    data, weight = te.placeholder((8, 8), "float32", "data"), te.placeholder((8, 8), "float32", "weight")
    product = matmul(data, weight, (8, 8), (8, 8), (0, 1), (0, 1), (0, 1), (8, 1), 8, False)
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((8,), lambda i: te.sum(product[i, k], k), "total")
    assert Matmul().apply(te.create_prim_func([data, weight, total]), TARGETS["native"]) is None


def test_aarch64_compiles() -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "num-cores": 4})
    func, _ = Product((30, 100), (100, 70), constant=True, epilogue="bias_relu").kernel(target)
    scheduled = apply_rules(func, target, [Matmul()])
    mod = vector_code()(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}))
    assert "fmla" in tvm.compile(mod, target).mod.inspect_source("asm")


@given(
    rows=st.integers(1, 5000), chunks=st.integers(1, 400), reduction=st.integers(1, 5000),
    row_bytes=st.sampled_from([0, 100, 2048, 4096, 12288]), machine=st.sampled_from([row for _, row in ROWS]),
)  # fmt: skip
def test_register_tile(rows: int, chunks: int, reduction: int, row_bytes: int, machine: Machine) -> None:
    tile_rows, vectors = register_tile(rows, chunks, reduction, row_bytes, machine)
    assert 1 <= tile_rows <= rows
    assert 1 <= vectors <= chunks
    assert tile_rows * vectors + vectors + 1 <= machine.vector_registers
    if row_bytes and row_bytes % PAGE == 0:
        assert tile_rows <= CACHE_WAYS
    if rows * chunks >= 100:  # little is computed in vain
        assert round_up(rows, tile_rows) * round_up(chunks, vectors) <= 1.35 * rows * chunks
    if rows >= 8 and chunks >= 4 and reduction >= 64:  # multiply-adds do not wait for each other
        assert tile_rows * vectors >= 7


def test_columns_from_the_second_cache_are_met_by_enough_rows() -> None:
    """Two units for multiply-adds ask twice as much of the L2 cache, which hands over no more."""
    one = Machine("avx512", 512, 32, "vnni", l2=1 << 20, cores=2)
    two = replace(one, flops=2 * one.flops)
    for rows, chunks, reduction in [(1024, 64, 1024), (128, 192, 768), (512, 32, 512)]:
        assert register_tile(rows, chunks, reduction, 4 * reduction, two)[0] >= 7
        fast = replace(two, l2_bandwidth=1e12)
        assert register_tile(rows, chunks, reduction, 4 * reduction, fast)[0] == 4
    # Columns of a tile that outgrow the L2 cache would come from the last one for every row tile.
    _, vectors = register_tile(128, 48, 4096, 16384, one)
    assert vectors * 64 * 4096 <= one.l2 // 2
    assert register_tile(64, 4, 64, 256, two) == register_tile(64, 4, 64, 256, one)  # columns stay in the L1 cache


@given(
    batch=st.sampled_from([1, 2, 12, 13]), row_tiles=st.integers(1, 60), column_tiles=st.integers(1, 60),
    tile=st.sampled_from([(1, 8), (4, 4), (8, 3), (6, 2)]), reduction=st.sampled_from([1, 64, 768, 20000]),
    machine=st.sampled_from([Machine("avx512", 512, 32, cores=cores) for cores in (1, 2, 3, 16)]),
    copies=st.booleans(), packs=st.booleans(),
)  # fmt: skip
def test_tasks(
    batch: int, row_tiles: int, column_tiles: int, tile: tuple[int, int], reduction: int, machine: Machine,
    copies: bool, packs: bool,
) -> None:  # fmt: skip
    extents = ProductExtents(
        batch, row_tiles * tile[0], column_tiles * tile[1], 16, reduction, 4, copies_rows=copies, packs_columns=packs
    )
    task = matmul_task(extents, tile, machine)
    assert row_tiles % task.row_parts == 0
    assert column_tiles % task.column_parts == 0
    tasks = batch * task.row_parts * task.column_parts
    if task.parallel:
        assert machine.cores > 1
        assert tasks > 1
        # No core has much more to do than its share, unless the product has too few tiles to share out.
        shares = -(-tasks // machine.cores) * machine.cores / tasks
        tiles = batch * row_tiles * column_tiles
        finest = -(-tiles // machine.cores) * machine.cores / tiles
        # Parts are divisors, so a prime number of tiles is shared out badly among many cores.
        assert shares <= (1.5 if machine.cores <= 3 else 4) * finest


def _bytes_from_afar(extents: ProductExtents, tile: tuple[int, int], task: MatmulTask, l2: int) -> int:
    """Bytes that one task after another reads from beyond an L2 cache that forgets what was used longest ago."""
    rows, columns = extents.rows // tile[0] // task.row_parts, extents.chunks // tile[1] // task.column_parts
    row_bytes = tile[0] * extents.reduction * 4
    column_bytes = tile[1] * extents.lanes * extents.reduction * 4
    held: OrderedDict[tuple[str, int], int] = OrderedDict()
    moved = 0
    for block in range(0, rows, task.block_tiles):
        for column in range(columns):
            for row in range(block, block + task.block_tiles):
                for key, size in ((("row", row), row_bytes), (("column", column), column_bytes)):
                    if key not in held:
                        moved += size
                    held[key] = held.pop(key, size)
                    while sum(held.values()) > l2:
                        held.popitem(last=False)
    return moved * task.row_parts * task.column_parts


@settings(deadline=None, max_examples=60)
@given(
    row_tiles=st.integers(1, 24), column_tiles=st.integers(1, 24), reduction=st.sampled_from([64, 768, 3072]),
    tile=st.sampled_from([(8, 3), (8, 2), (4, 6), (12, 2)]), l2=st.sampled_from([512 << 10, 1 << 20, 2 << 20]),
)  # fmt: skip
def test_an_order_of_tiles_reads_little_from_beyond_the_second_cache(
    row_tiles: int, column_tiles: int, reduction: int, tile: tuple[int, int], l2: int
) -> None:
    extents = ProductExtents(1, row_tiles * tile[0], column_tiles * tile[1], 16, reduction, 4, False, False)
    task = matmul_task(extents, tile, Machine("avx512", 512, 32, l2=l2))
    chosen = _bytes_from_afar(extents, tile, task, l2)
    for order in (1, row_tiles):  # the product at once, in either order
        assert chosen <= 1.25 * _bytes_from_afar(extents, tile, MatmulTask(1, 1, False, order), l2)


@pytest.mark.parametrize("rows", [7, 50, 128, 196, 1024])
@pytest.mark.parametrize("chunks", [3, 16, 192])
def test_without_fused_multiply_adds_a_register_is_left_for_a_product(rows: int, chunks: int) -> None:
    unfused = next(machine for _, machine in ROWS if machine.isa == "sse4")
    tile_rows, vectors = register_tile(rows, chunks, 768, 0, unfused)
    assert tile_rows * vectors + vectors + 2 <= unfused.vector_registers
    # An element that is brought to all lanes by two instructions is met with several vectors.
    assert vectors > 1 or chunks == 3
    fused = replace(unfused, fuses=True)
    assert tile_cost(rows, chunks, 768, (12, 1), fused) < tile_cost(rows, chunks, 768, (12, 1), unfused)
