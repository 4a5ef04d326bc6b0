"""Dataflows are read from PrimFuncs, and relations from dataflows; each compared with running or counting."""

from __future__ import annotations

from itertools import product

import islpy
import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from tests.embedding.flows import flow, random_case
from tests.embedding.scalar_program import access_sets, points
from tests.embedding.test_strategy import run
from tvm_ext.embedding.read import read_dataflow
from tvm_ext.embedding.relations import access_map, access_set, domain, shares
from tvm_ext.errors import EmbeddingError


def tensor(*shape: int, dtype: str = "float32") -> te.Tensor:
    return te.placeholder(shape, dtype)


def operators() -> dict[str, tirx.PrimFunc]:
    x, w = tensor(1, 4, 5, 6), tensor(6, 2, 3, 2)
    grouped = te.create_prim_func([x, w, topi.nn.group_conv2d_nchw(x, w, 2, 0, 1, 2)])
    d = tensor(4, 1, 3, 3)
    depthwise = te.create_prim_func([x, d, topi.nn.depthwise_conv2d_nchw(x, d, 1, 0, 1)])
    v = tensor(4, 4, 2, 2)
    dilated = te.create_prim_func([x, v, topi.nn.conv2d_nchw(x, v, 1, 0, 2)])
    m, n = tensor(3, 5), tensor(4, 5)
    product_ = te.create_prim_func([m, n, topi.nn.matmul(m, n, transpose_b=True)])
    return {"grouped": grouped, "depthwise": depthwise, "dilated": dilated, "matmul": product_}


@pytest.mark.parametrize("name", ["grouped", "depthwise", "dilated", "matmul"])
def test_a_dataflow_computes_what_its_function_does(name: str) -> None:
    func = operators()[name]
    found = read_dataflow(func)
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-5, 5, access.shape) for access in found.inputs)
    compiled = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    result = tvm.runtime.tensor(np.zeros(found.output.shape, "float32"))
    compiled["main"](*(tvm.runtime.tensor(values.astype("float32")) for values in (left, right)), result)
    np.testing.assert_array_equal(run(found, left, right), result.numpy())


def test_divided_indices_split_their_axis() -> None:
    found = read_dataflow(operators()["grouped"])
    extents = [axis.extent for axis in found.axes]
    assert sorted(extents) == sorted([1, 2, 3, 2, 3, 2, 3, 2])
    assert len(found.axes) == 8


def refused() -> dict[str, tuple[tirx.PrimFunc, str]]:
    k = te.reduce_axis((0, 8), "k")
    rows, a, b = tensor(4, dtype="int32"), tensor(9, 8), tensor(8, 8)
    gather = te.compute((4, 8), lambda i, j: te.sum(a[rows[i], k] * b[k, j], [k]), name="gather")
    n = te.var("n")
    open_rows = te.placeholder((n, 8), "float32")
    squares = te.compute((4,), lambda i: te.sum(a[i, k] * a[i, k] * a[i, k], [k]), name="cubes")
    chosen = te.compute((8, 8), lambda i, j: te.sum(te.if_then_else(k > i, a[i, k], 0.0) * b[k, j], [k]), name="chosen")
    square = te.compute((3, 8), lambda i, j: te.sum(a[i * i, k] * b[k, j], [k]), name="square")
    odd = te.compute((8, 8), lambda i, j: te.sum(a[i // 3, k] * b[k, j], [k]), name="odd")
    return {
        "data-dependent": (te.create_prim_func([rows, a, b, gather]), r"block 'gather': the index .* is not affine"),
        "open extent": (te.create_prim_func([open_rows, b, topi.nn.matmul(open_rows, b)]), "expected a known number"),
        "three factors": (te.create_prim_func([a, squares]), "no product of two elements"),
        "condition": (te.create_prim_func([a, b, chosen]), "no product of two elements"),
        "square": (te.create_prim_func([a, b, square]), "is not affine"),
        "uneven split": (te.create_prim_func([a, b, odd]), "do not divide 8"),
        "nothing": (
            te.create_prim_func([a, topi.nn.relu(a)]),
            "expected one block that sums up; the function has none",
        ),
        "maximum": (te.create_prim_func([a, topi.max(a, axis=1)]), "no sum of products"),
    }


@pytest.mark.parametrize("name", list(refused()))
def test_what_cannot_be_read_is_refused_with_a_reason(name: str) -> None:
    func, message = refused()[name]
    with pytest.raises(EmbeddingError, match=message):
        read_dataflow(func)


def cast(left: str, right: str, product: str, total: str) -> tirx.PrimFunc:
    """A product in one type, and sums in another."""
    a, b = tensor(4, 8, dtype=left), tensor(8, 4, dtype=right)
    k = te.reduce_axis((0, 8), "k")
    return te.create_prim_func([a, b, te.compute(
        (4, 4), lambda i, j: te.sum((a[i, k].astype(product) * b[k, j].astype(product)).astype(total), [k]), name="c"
    )])  # fmt: skip


@pytest.mark.parametrize(
    "types",
    [("int8", "int8", "int32", "int32"), ("uint8", "int8", "int16", "int32"),
     ("float16", "float16", "float32", "float32"),
     ("bfloat16", "bfloat16", "float32", "float32"), ("int8", "int8", "float32", "float32"),
     ("float32", "float32", "float32", "float32"), ("float16", "float16", "float16", "float16")],
)  # fmt: skip
def test_casts_that_keep_values_are_read(types: tuple[str, str, str, str]) -> None:
    assert [access.dtype for access in read_dataflow(cast(*types)).operands] == [types[0], types[1], types[3]]


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        (("int8", "int8", "int8", "int32"), "multiplies int8 and int8 in int8, which rounds or wraps"),
        (("uint8", "uint8", "int16", "int32"), "converts|multiplies uint8 and uint8 in int16, which rounds or wraps"),
        (("float16", "float16", "float16", "float32"), "multiplies float16 and float16 in float16"),
        (("int8", "uint8", "uint8", "int32"), "converts int8 to uint8, which changes values"),
        (("float32", "float32", "int8", "int32"), "converts float32 to int8, which changes values"),
        (("float32", "float32", "bfloat16", "float32"), "converts float32 to bfloat16, which changes values"),
        (("float64", "float64", "float64", "float32"), "converts float64 to float32|in float64, which rounds"),
    ],
)
def test_casts_that_change_values_are_refused(types: tuple[str, str, str, str], reason: str) -> None:
    with pytest.raises(EmbeddingError, match=reason):
        read_dataflow(cast(*types))


@pytest.mark.parametrize("seed", range(12))
def test_relations_are_those_that_counting_finds(seed: int) -> None:
    operator, _ = random_case(seed)
    assert domain(operator).count_val().to_python() == operator.macs
    free = [at for at, axis in enumerate(operator.axes) if not axis.reduces]
    for number in range(3):
        reached = access_map(operator, number).range().count_val().to_python()
        assert reached == len({operator.operands[number].at(point) for point in points(operator)})
    for number in range(2):
        needed = access_sets(operator, operator.inputs[number])
        for output in list(product(*(range(operator.axes[at].extent) for at in free)))[:4]:
            place = [0] * len(operator.axes)
            for at, value in zip(free, output, strict=True):
                place[at] = value
            expected = needed[operator.output.at(tuple(place))]
            assert access_set(operator, number, output).count_val().to_python() == len(expected)


def test_overlap_of_figure_4_6() -> None:
    stencil = flow("C[h,w] += A[h,w+k] * B[k]", h=3, w=3, k=3)
    assert shares(stencil, 0, [(1, 2, 1)])
    assert not shares(stencil, 0, [(0, 2, 1)])
    assert shares(stencil, 1, [(0, 2, 1)])
    wide = flow("C[w] += A[w+k] * B[k]", w=8, k=3)
    assert [shares(wide, 0, [(0, 2, stride)]) for stride in (1, 2, 3, 4)] == [True, True, False, False]


def test_relations_do_not_grow_with_extents() -> None:
    def size(extent: int) -> int:
        operator = flow("C[m,n] += A[m,k] * B[k,n]", m=extent, n=extent, k=extent)
        return sum(len(access_map(operator, number).get_basic_maps()) for number in range(3))

    assert size(8) == size(1024)
    assert isinstance(domain(flow("C[m] += A[m,k] * B[k]", m=4, k=4)), islpy.Set)
