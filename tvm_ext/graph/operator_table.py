"""How much arithmetic each high-level Relax operator does, as rows.

The rules are those of :class:`~tvm_ext.graph.flops.Flops`. A composite operator counts as the formula that TVM lowers
it to, evaluated for every element; so a row and the loops of the lowered operator give the same number, with exceptions
that are on purpose: a transposed convolution counts its own products and not those with the zeros TVM inserts, and
``sign``, ``isinf``, ``isfinite``, ``argmax`` and ``argmin`` count one comparison for each element.

An operator without a row (sorting, non-maximum suppression, ...) has no static count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.dataflow import Tensor
from tvm_ext.graph.flops import Flops
from tvm_ext.graph.symbolic import Dim, product


@dataclass(frozen=True)
class _Call:
    """One use of an operator; every tensor has a known shape."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any]

    def read(self, position: int = 0) -> Dim:
        return product(self.shape(position))

    @property
    def written(self) -> Dim:
        return product(self.outputs[0].shape or ())

    def shape(self, position: int) -> tuple[Dim, ...]:
        return self.inputs[position].shape or ()


_Formula = Callable[[_Call], Flops]

_OTHER = Flops(other=1)

# Operations for each element of the first output.
_ELEMENTWISE: dict[str, Flops] = {
    **dict.fromkeys(
        """abs acos acosh asin asinh atan atan2 atanh ceil cos cosh divide equal erf exp floor greater
        greater_equal isfinite isinf isnan less less_equal log maximum minimum mod not_equal power round rsqrt
        sigmoid sign sin sinh sqrt tan tanh trunc bitwise_and bitwise_not bitwise_or bitwise_xor left_shift
        right_shift logical_and logical_not logical_or logical_xor nn.relu""".split(),
        _OTHER,
    ),
    **dict.fromkeys("add subtract".split(), Flops(add=1)),
    **dict.fromkeys("multiply negative outer square nn.leakyrelu nn.prelu".split(), Flops(multiply=1)),
    "clip": Flops(other=2),
    "ewise_fma": Flops(multiply=1, add=1),
    "log_add_exp": Flops(add=1, other=3),
    "quantize": Flops(add=1, other=4),  # round(x / scale) + zero point, clipped at both ends
    "dequantize": Flops(multiply=1, add=1),
    "cumsum": Flops(add=1),
    "cumprod": Flops(multiply=1),
    "nn.gelu": Flops(multiply=3, add=1, other=1),  # 0.5 x (1 + erf(x / sqrt 2))
    "nn.gelu_tanh": Flops(multiply=6, add=2, other=1),
    "nn.selu": Flops(multiply=2, add=2, other=3),
    "nn.silu": Flops(multiply=1, other=1),
    "nn.softmax": Flops(add=2, other=3),  # maximum, subtract, exp, sum, divide
    "nn.log_softmax": Flops(add=4, other=3),
}

# Reductions: operations for each element read, and for each element written.
_REDUCTIONS: dict[str, tuple[Flops, Flops]] = {
    "sum": (Flops(add=1), Flops()),
    "mean": (Flops(add=1), _OTHER),
    "prod": (Flops(multiply=1), Flops()),
    "max": (_OTHER, Flops()),
    "min": (_OTHER, Flops()),
    "argmax": (_OTHER, Flops()),
    "argmin": (_OTHER, Flops()),
    "variance": (Flops(multiply=1, add=3), Flops(other=2)),
    "std": (Flops(multiply=1, add=3), Flops(other=3)),
    "collapse_sum_to": (Flops(add=1), Flops()),
    "collapse_sum_like": (Flops(add=1), Flops()),
}

# Operators that move, choose, make or rename values.
_NO_ARITHMETIC = frozenset(
    """arange assert_op astype broadcast_to builtin.alloc_tensor builtin.stop_lift_params concat
    dynamic_strided_slice expand_dims eye eye_like flatten flip full full_like gather_elements gather_nd
    hint_on_device index_put index_tensor layout_transform memory.alloc_storage memory.alloc_tensor
    memory.ensure_zero_offset memory.kill_storage memory.kill_tensor memory.view meshgrid nn.batch_flatten
    nn.dropout nn.pad nn.pixel_shuffle null_value one_hot ones ones_like permute_dims print repeat reshape
    reverse_sequence scatter_elements scatter_nd shape_of shape_to_tensor size slice_scatter split squeeze stack
    strided_slice take tensor_to_shape tile to_vdevice tril triu vm.alloc_storage vm.alloc_tensor vm.kill_object
    where wrap_param zeros zeros_like""".split()
)


def has_arithmetic(op: str) -> bool:
    """Whether an operator, without ``relax.``, computes values instead of moving, choosing, making or renaming them."""
    return op not in _NO_ARITHMETIC


def operator_flops(
    op: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], attributes: Mapping[str, Any]
) -> Flops | None:
    """Arithmetic of one use of a Relax operator.

    Parameters
    ----------
    op : str
        Operator without ``relax.``.
    inputs, outputs : tuple of Tensor
        Operands as written, and results; tuples flattened.
    attributes : mapping
        The operator's attributes.

    Returns
    -------
    flops : Flops, or None
        None when the operator has no row, or a shape it depends on is not known.
    """
    if op in _NO_ARITHMETIC:
        return Flops()
    if any(tensor.shape is None for tensor in (*inputs, *outputs)):
        return None
    call = _Call(inputs, outputs, attributes)
    if op in _ELEMENTWISE:
        return _ELEMENTWISE[op].times(call.written)
    if op in _REDUCTIONS:
        each_read, each_written = _REDUCTIONS[op]
        return each_read.times(call.read()) + each_written.times(call.written)
    formula = _FORMULAS.get(op)
    return None if formula is None else formula(call)


def _multiply_add(count: Dim) -> Flops:
    return Flops(multiply=count, add=count)


def _floor_divide(call: _Call) -> Flops:
    return Flops(other=call.written * (2 if _is_float(call) else 1))


def _floor_mod(call: _Call) -> Flops:
    # a - floor(a / b) * b for floats, one instruction for integers
    return (Flops(multiply=1, add=1, other=2) if _is_float(call) else _OTHER).times(call.written)


def _softplus(call: _Call) -> Flops:
    scaling = 0 if call.attributes.get("beta", 1.0) == 1.0 else 2  # log(1 + exp(beta x)) / beta
    return Flops(multiply=scaling, add=1, other=2).times(call.written)


def _matmul(call: _Call) -> Flops:
    return _multiply_add(call.written * call.shape(0)[-1])


def _einsum(call: _Call) -> Flops:
    terms = call.attributes["subscripts"].replace(" ", "").replace("...", "").split("->")[0].split(",")
    shapes = [call.shape(position) for position in range(len(terms))]
    extent: dict[str, Dim] = {}
    for letters, shape in zip(terms, shapes, strict=True):
        extent.update(zip(reversed(letters), reversed(shape), strict=False))
    # The axes an ellipsis stands for lead the result.
    ellipsis = max(len(shape) - len(letters) for letters, shape in zip(terms, shapes, strict=True))
    result = call.outputs[0].shape or ()
    points = product((*extent.values(), *result[:ellipsis]))
    is_sum = len(extent) + ellipsis > len(result)
    return Flops(multiply=points * (len(terms) - 1), add=points if is_sum else 0)


def _convolution(call: _Call) -> Flops:
    """Every output element is a sum over the kernel window; positions in the padding count as well."""
    return _multiply_add(call.written * (call.read(1) // _channels(call, "O")))


def _transposed_convolution(call: _Call) -> Flops:
    """Every input element is spread over the kernel window of each output channel of its group."""
    return _multiply_add(call.read() * (call.read(1) // _channels(call, "I")))


def _channels(call: _Call, letter: str) -> Dim:
    """Extent of the output (O) or input (I) channels of the kernel, whose layout may split them: OIHW16i16o."""
    axes = re.findall(r"[A-Za-z]", call.attributes["kernel_layout"])
    return product(dim for axis, dim in zip(axes, call.shape(1), strict=True) if axis.upper() == letter)


def _max_pool(call: _Call) -> Flops:
    return Flops(other=call.written * product(call.attributes["pool_size"]))


def _average_pool(call: _Call) -> Flops:
    return Flops(add=call.written * product(call.attributes["pool_size"]), other=call.written)


def _adaptive_average_pool(call: _Call) -> Flops:
    """Window i of an axis is [floor(i * read / written), ceil((i + 1) * read / written)): windows may overlap."""
    points: Dim = 1
    for read, written in zip(call.shape(0), call.outputs[0].shape or (), strict=True):
        if isinstance(read, int) and isinstance(written, int):
            points *= sum(-(-(i + 1) * read // written) - i * read // written for i in range(written))
        else:
            points *= read
    return Flops(add=points, other=call.written)


def _batch_norm(call: _Call) -> Flops:
    # (x - mean) / sqrt(variance + epsilon) * gamma + beta; variance and square root once for each channel
    channels = call.read(1)
    scale, center = call.attributes.get("scale", True), call.attributes.get("center", True)
    total = Flops(multiply=int(scale), add=1 + int(center), other=1).times(call.read())
    total = total + Flops(add=channels, other=channels)
    if call.attributes.get("training", False):
        # mean and variance of the batch, and their moving averages
        total = total + Flops(multiply=1, add=4).times(call.read()) + Flops(4, 2, 2).times(channels)
    return total


def _layer_norm(call: _Call) -> Flops:
    shape = call.shape(0)
    normalized = product(shape[axis] for axis in call.attributes["axes"])
    return Flops(multiply=3, add=7, other=2).times(call.read()) + _OTHER.times(call.read() // normalized)


def _group_norm(call: _Call) -> Flops:
    # the variance is taken as E[x^2] - E[x]^2, for every element
    return Flops(multiply=4, add=6, other=5).times(call.read())


def _rms_norm(call: _Call) -> Flops:
    shape = call.shape(0)
    rows = call.read() // product(shape[axis] for axis in call.attributes["axes"])
    return Flops(multiply=3, add=1).times(call.read()) + Flops(add=1, other=2).times(rows)


def _attention(call: _Call) -> Flops:
    """softmax(query key^T / sqrt(depth) + bias) value, over [batch, sequence, heads, depth]."""
    batch, queries, heads, depth = call.shape(0)
    scores = batch * queries * heads * call.shape(1)[1]
    total = _multiply_add(scores * (depth + call.shape(2)[3])) + _ELEMENTWISE["nn.softmax"].times(scores)
    scaling = Flops(other=1) if call.attributes.get("scale") is None else Flops(multiply=1)
    bias = Flops(add=1) if len(call.inputs) > 3 else Flops()
    return total + (scaling + bias).times(scores)


def _cross_entropy(call: _Call) -> Flops:
    # -(prediction * label) summed, divided by the batch
    return _multiply_add(call.read()) + Flops(multiply=1, other=1 if len(call.shape(0)) > 1 else 0)


def _resize(call: _Call) -> Flops:
    axes = len(call.shape(0)) - 2
    method = call.attributes["method"]
    if method == "nearest_neighbor":
        return Flops()
    # One interpolation along the last axis for each line, then along the next axis between them, ...
    points = 2 if method == "linear" else 4
    lines = sum(points**axis for axis in range(axes))
    return Flops(multiply=points * lines, add=(points - 1) * lines).times(call.written)


def _is_float(call: _Call) -> bool:
    return "float" in call.outputs[0].dtype


_FORMULAS: dict[str, _Formula] = {
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "nn.softplus": _softplus,
    "matmul": _matmul,
    "einsum": _einsum,
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), _convolution),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), _transposed_convolution),
    **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"), _max_pool),
    **dict.fromkeys(("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"), _average_pool),
    **dict.fromkeys(
        ("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d"), _adaptive_average_pool
    ),
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _layer_norm,
    **dict.fromkeys(("nn.group_norm", "nn.instance_norm"), _group_norm),
    "nn.rms_norm": _rms_norm,
    **dict.fromkeys(("nn.attention", "nn.attention_bias"), _attention),
    "nn.cross_entropy_with_logits": _cross_entropy,
    **dict.fromkeys(("image.resize2d", "image.resize3d"), _resize),
}
