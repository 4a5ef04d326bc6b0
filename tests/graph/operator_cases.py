"""One small use of nearly every Relax operator: name, how to call it, and the types of its operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

nn = op.nn
Case = tuple[Callable[..., Any], list[relax.TensorType]]


def tensor(*shape: int, dtype: str = "float32") -> relax.TensorType:
    return relax.TensorType(shape, dtype)


X = tensor(2, 6, 8)
INT = tensor(3, 4, dtype="int64")
BOOL = tensor(3, 4, dtype="bool")
CASES: dict[str, Case] = {}


def case(name: str, call: Callable[..., Any], *types: relax.TensorType) -> None:
    assert name not in CASES
    CASES[name] = (call, list(types))


for _name in (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor isfinite isinf isnan log negative round rsqrt "
    "sigmoid sign sin sinh sqrt square tan tanh trunc"
).split():
    case(_name, getattr(op, _name), X)
for _name in (
    "add atan2 divide equal floor_divide floor_mod greater greater_equal less less_equal log_add_exp maximum minimum "
    "mod multiply not_equal power subtract"
).split():
    case(_name, getattr(op, _name), X, tensor(6, 1))
for _name in "divide floor_divide floor_mod mod bitwise_and bitwise_or bitwise_xor left_shift right_shift".split():
    case(f"{_name} of integers", getattr(op, _name), INT, INT)
for _name in "logical_and logical_or logical_xor".split():
    case(_name, getattr(op, _name), BOOL, BOOL)
case("logical_not", op.logical_not, BOOL)
case("bitwise_not", op.bitwise_not, INT)
case("clip", lambda x: op.clip(x, -1, 1), X)
case("where", op.where, tensor(2, 6, 8, dtype="bool"), X, X)
case("astype", lambda x: op.astype(x, "float16"), X)
case(
    "quantize",
    lambda x, s, z: op.quantize(x, s, z, axis=1, out_dtype="int8"),
    X,
    tensor(6),
    tensor(6, dtype="int8"),
)
case("dequantize", partial(op.dequantize, axis=1), tensor(2, 6, 8, dtype="int8"), tensor(6), tensor(6, dtype="int8"))

for _name in "sum mean max min prod std variance".split():
    case(_name, partial(getattr(op, _name), axis=[1]), X)
    case(f"{_name} of all", getattr(op, _name), X)
case("argmax", partial(op.argmax, axis=1), X)
case("argmin", partial(op.argmin, axis=1), X)
case("collapse_sum_to", lambda x: op.collapse_sum_to(x, (6, 8)), X)

case("matmul", op.matmul, tensor(5, 7), tensor(7, 3))
case("matmul in batches", op.matmul, tensor(2, 4, 5, 7), tensor(4, 7, 3))
case("matmul of a vector", op.matmul, tensor(7), tensor(7, 3))
case("matmul of bytes", partial(op.matmul, out_dtype="int32"), tensor(5, 7, dtype="int8"), tensor(7, 3, dtype="int8"))
case("linear", op.linear, tensor(3, 4), tensor(5, 4), tensor(5))
case("outer", op.outer, tensor(5), tensor(7))
for _subscripts, *_shapes in (
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5)),
    ("i,j->ij", (3,), (4,)),
    ("ij,jk,kl->il", (3, 2), (2, 4), (4, 2)),
    ("ij->ji", (3, 2)),
    ("ij->i", (3, 2)),
    ("...ij,...jk->...ik", (2, 3, 2), (2, 2, 4)),
):
    case(f"einsum {_subscripts}", lambda *a, s=_subscripts: op.einsum(a, s), *(tensor(*shape) for shape in _shapes))

case("conv1d", partial(nn.conv1d, padding=1), tensor(2, 6, 9), tensor(4, 6, 3))
case("conv2d", partial(nn.conv2d, padding=1, strides=2), tensor(2, 6, 9, 9), tensor(4, 6, 3, 3))
case("conv2d dilated", partial(nn.conv2d, dilation=2), tensor(2, 6, 9, 9), tensor(4, 6, 3, 3))
case("conv2d in groups", partial(nn.conv2d, padding=1, groups=2), tensor(2, 6, 9, 9), tensor(4, 3, 3, 3))
case("conv2d depthwise", partial(nn.conv2d, padding=1, groups=6), tensor(2, 6, 9, 9), tensor(6, 1, 3, 3))
case(
    "conv2d channels last",
    partial(nn.conv2d, padding=1, data_layout="NHWC", kernel_layout="HWIO"),
    tensor(2, 9, 9, 6),
    tensor(3, 3, 6, 4),
)
case("conv3d", partial(nn.conv3d, padding=1), tensor(1, 2, 5, 6, 7), tensor(4, 2, 3, 3, 3))
case("conv1d_transpose", partial(nn.conv1d_transpose, strides=2), tensor(2, 6, 9), tensor(6, 4, 3))
case("conv2d_transpose", partial(nn.conv2d_transpose, strides=(2, 2)), tensor(2, 6, 9, 9), tensor(6, 4, 3, 3))
case("conv3d_transpose", partial(nn.conv3d_transpose, strides=(2, 2, 2)), tensor(1, 6, 4, 5, 6), tensor(6, 4, 3, 3, 3))

for _axes, _shape in ((1, (2, 3, 8)), (2, (2, 3, 8, 8)), (3, (2, 3, 4, 8, 8))):
    for _kind in ("max", "avg"):
        _pool = getattr(nn, f"{_kind}_pool{_axes}d")
        _plain = partial(_pool, pool_size=(2,) * _axes, strides=(2,) * _axes, padding=(0,) * (2 * _axes))
        _padded = partial(_pool, pool_size=(3,) * _axes, strides=(1,) * _axes, padding=(1,) * (2 * _axes))
        case(f"{_kind}_pool{_axes}d", _plain, tensor(*_shape))
        case(f"{_kind}_pool{_axes}d padded", _padded, tensor(*_shape))
    _adaptive = getattr(nn, f"adaptive_avg_pool{_axes}d")
    case(f"adaptive_avg_pool{_axes}d", partial(_adaptive, output_size=(2,) * _axes), tensor(*_shape))
    case(f"adaptive_avg_pool{_axes}d global", partial(_adaptive, output_size=(1,) * _axes), tensor(*_shape))

for _name in "relu relu6 leakyrelu gelu gelu_tanh selu silu softmax softplus log_softmax".split():
    case(_name, getattr(nn, _name), X)
case("softplus with beta", partial(nn.softplus, beta=2.0), X)
case("prelu", partial(nn.prelu, axis=1), X, tensor(6))
_image, _channels = tensor(2, 6, 8, 8), tensor(6)
for _flags in ({}, {"training": True}, {"center": False, "scale": False, "training": False}):
    case(
        f"batch_norm {_flags}",
        lambda x, g, b, m, v, f=_flags: nn.batch_norm(x, g, b, m, v, axis=1, **({"training": False} | f)),
        _image,
        *(_channels,) * 4,
    )
case("layer_norm", partial(nn.layer_norm, axes=[-1]), X, tensor(8), tensor(8))
case("layer_norm over two axes", partial(nn.layer_norm, axes=[-2, -1]), X, tensor(6, 8), tensor(6, 8))
case("group_norm", partial(nn.group_norm, num_groups=3, channel_axis=1, axes=[2, 3]), _image, _channels, _channels)
case("instance_norm", partial(nn.instance_norm, channel_axis=1, axes=[2, 3]), _image, _channels, _channels)
case("rms_norm", partial(nn.rms_norm, axes=[-1]), X, tensor(8))
case("dropout", nn.dropout, X)
case("cross_entropy_with_logits", nn.cross_entropy_with_logits, tensor(3, 5), tensor(3, 5))
case("cross_entropy_with_logits of one", nn.cross_entropy_with_logits, tensor(5), tensor(5))
_query, _key, _memory = tensor(2, 5, 3, 8), tensor(2, 7, 3, 8), tensor(2, 7, 3, 6)
case("attention", nn.attention, _query, _key, _memory)
case("attention with bias", nn.attention, _query, _key, _memory, tensor(2, 3, 5, 7))
case("attention with scale", partial(nn.attention, scale=0.5), _query, _key, _memory)
case("attention causal", partial(nn.attention, causal_mask="TopLeft"), _query, _query, _query)
for _method in ("nearest_neighbor", "linear", "cubic"):
    case(f"resize2d {_method}", lambda x, m=_method: op.image.resize2d(x, (8, 8), method=m), tensor(1, 3, 4, 4))
case("resize3d", lambda x: op.image.resize3d(x, (8, 8, 8), method="linear"), tensor(1, 3, 4, 4, 4))

case("pad", lambda x: nn.pad(x, (0, 0, 1, 1, 2, 2)), X)
case("broadcast_to", lambda x: op.broadcast_to(x, (3, 2, 6, 8)), X)
case("concat", lambda a, b: op.concat([a, b], 1), X, X)
case("stack", lambda a, b: op.stack([a, b], 0), X, X)
case("split", lambda x: op.split(x, 2, 1), X)
case("expand_dims", lambda x: op.expand_dims(x, 0), X)
case("flatten", op.flatten, X)
case("squeeze", op.squeeze, tensor(2, 1, 3))
case("reshape", lambda x: op.reshape(x, (12, 8)), X)
case("permute_dims", op.permute_dims, X)
case("layout_transform", lambda x: op.layout_transform(x, lambda n, c, w: (n, c // 2, w, c % 2)), X)
case("repeat", lambda x: op.repeat(x, 2, 1), X)
case("tile", lambda x: op.tile(x, (2, 1, 1)), X)
case("flip", lambda x: op.flip(x, 1), X)
case("strided_slice", lambda x: op.strided_slice(x, [1], [0], [3]), X)
case("take", lambda x, i: op.take(x, i, 1), X, tensor(3, dtype="int64"))
case("gather_elements", lambda x, i: op.gather_elements(x, i, 1), X, tensor(2, 6, 8, dtype="int64"))
case("gather_nd", op.gather_nd, X, tensor(2, 2, dtype="int64"))
case("index_tensor", lambda x, i: op.index_tensor(x, [i]), X, tensor(3, dtype="int64"))
case("scatter_elements", lambda x, i, u: op.scatter_elements(x, i, u, 1), X, tensor(2, 6, 8, dtype="int64"), X)
case("scatter_nd", op.scatter_nd, X, tensor(3, 1, dtype="int64"), tensor(3, 6, 8))
case("meshgrid", lambda a, b: op.meshgrid([a, b]), tensor(3), tensor(4))
case("one_hot", lambda i: op.one_hot(i, relax.prim_value(1), relax.prim_value(0), 5), tensor(3, dtype="int64"))
case("full", lambda v: op.full((3, 4), v), tensor())
case("zeros_like", op.zeros_like, X)
case("ones_like", op.ones_like, X)
case("tril", op.tril, X)
case("triu", op.triu, X)


def build(name: str) -> tvm.IRModule:
    """A module with one dataflow block that holds the operator (or the few it is made of)."""
    call, types = CASES[name]
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{number}", ty) for number, ty in enumerate(types)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(call(*parameters))
        builder.emit_func_output(result)
    return builder.get()
