"""How the elements of an operator's operands map to those of its result: the mapping types that decide fusion.

The types and the table are those of Niu et al., "DNNFusion: Accelerating Deep Neural Networks Execution with Advanced
Operator Fusion", PLDI 2021, section 3.1 and table 3; operators the table does not list are placed by its definitions.

A type belongs to each operand: in ``x - mean(x)`` the full-size ``x`` is read One-to-One and the mean One-to-Many. The
type of the operator is the more complex of its operands' types (the source's rule for several inputs), with one
refinement: an element-wise operator is One-to-Many only where the result is larger than every operand it is computed
from, because only then does it multiply data. Scalars, and weights or inputs of the function that vary along one axis
(a bias), stay One-to-One.
"""

from __future__ import annotations

from collections.abc import Mapping as AttributeMapping
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tvm_ext.graph.dataflow import HOST_VALUES, Tensor
from tvm_ext.graph.symbolic import Dim


class MappingType(IntEnum):
    """In order of complexity (the source's footnote 1); ``OPAQUE`` stands for what must not be fused."""

    ONE_TO_ONE = 0
    REORGANIZE = 1
    SHUFFLE = 2
    ONE_TO_MANY = 3
    MANY_TO_MANY = 4
    OPAQUE = 5

    def __str__(self) -> str:
        return "-".join(part if part == "to" else part.capitalize() for part in self.name.lower().split("_"))


@dataclass(frozen=True)
class Mapping:
    """Mapping types of one use of an operator.

    Attributes
    ----------
    node : MappingType
        Type of the operator.
    operands : tuple of MappingType
        Type from each operand, as written, to the result.
    is_disjoint_window : bool
        A maximum over windows that do not overlap, so that every element is read at most once: a reader of its result
        can take the maximum itself, without doing it more than once.
    rows : tuple of two int, optional
        For reductions of neighbouring elements, such as a mean along the last axis: number and length of the rows that
        are reduced. Reductions of the same rows can follow one another while a row stays in the cache.
    """

    node: MappingType
    operands: tuple[MappingType, ...]
    is_disjoint_window: bool = False
    rows: tuple[int, int] | None = None


ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType

# Type of each Relax operator. One-to-One operators with several operands are looked at operand by operand.
MAPPING_TYPES: dict[str, MappingType] = {
    **dict.fromkeys(
        """abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor isfinite isinf isnan log negative round
        rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc clip astype bitwise_not logical_not
        nn.relu nn.leakyrelu nn.prelu nn.gelu nn.gelu_tanh nn.selu nn.silu nn.softplus nn.dropout
        add atan2 divide equal ewise_fma floor_divide floor_mod greater greater_equal less less_equal log_add_exp
        maximum minimum mod multiply not_equal power subtract where bitwise_and bitwise_or bitwise_xor left_shift
        right_shift logical_and logical_or logical_xor quantize dequantize nn.batch_norm
        concat split strided_slice dynamic_strided_slice stack tril triu
        hint_on_device to_vdevice wrap_param builtin.stop_lift_params""".split(),
        ONE_TO_ONE,
    ),
    **dict.fromkeys(
        """broadcast_to take gather_elements gather_nd image.resize2d image.resize3d image.grid_sample
        image.affine_grid repeat tile nn.pad one_hot index_tensor meshgrid outer full ones zeros eye
        full_like ones_like zeros_like eye_like arange hamming_window""".split(),
        ONE_TO_MANY,
    ),
    **dict.fromkeys(
        """nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d
        nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d
        nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose
        cumsum cumprod einsum matmul sum mean prod max min argmax argmin variance std median collapse_sum_to
        collapse_sum_like nn.instance_norm nn.group_norm nn.layer_norm nn.rms_norm nn.softmax nn.log_softmax
        nn.attention nn.attention_bias nn.attention_var_len nn.cross_entropy_with_logits nn.nll_loss bucketize
        vision.roi_align vision.roi_pool""".split(),
        MANY_TO_MANY,
    ),
    **dict.fromkeys("reshape flatten squeeze expand_dims nn.batch_flatten memory.view".split(), REORGANIZE),
    **dict.fromkeys("permute_dims flip layout_transform nn.pixel_shuffle reverse_sequence".split(), SHUFFLE),
    # Results whose place or number depends on data, work on the host, and calls of what is not known.
    **dict.fromkeys(
        """argsort sort topk unique nonzero multinomial_from_uniform scatter_elements scatter_nd slice_scatter index_put
        vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_transform_loc
        vision.non_max_suppression assert_op print null_value shape_of shape_to_tensor size tensor_to_shape
        builtin.alloc_tensor memory.alloc_storage memory.alloc_tensor memory.ensure_zero_offset memory.kill_storage
        memory.kill_tensor vm.alloc_storage vm.alloc_tensor vm.kill_object""".split(),
        OPAQUE,
    ),
}

# Operators whose operands are the data first and then vectors along one axis of it.
_DATA_FIRST = frozenset("nn.batch_norm nn.prelu quantize dequantize".split())
# Each operand becomes a part of the result, or the result a part of the operand.
_PARTS = frozenset("concat split strided_slice dynamic_strided_slice stack tril triu".split())


def operator_mapping(
    op: str, operands: Sequence[Tensor], outputs: Sequence[Tensor], attributes: AttributeMapping[str, Any]
) -> Mapping:
    """Find the mapping types of one use of a Relax operator.

    Parameters
    ----------
    op : str
        Operator without ``relax.``; one that has no row is opaque.
    operands, outputs : sequence of Tensor
        Operands as written, and results.
    attributes : mapping
        The operator's attributes.
    """
    kind = MAPPING_TYPES.get(op, OPAQUE)
    if op == "einsum" and not _sums(attributes["subscripts"]):
        kind = SHUFFLE if len(operands) == 1 else ONE_TO_MANY
    elif op == "nn.batch_norm" and attributes.get("training", False):
        kind = MANY_TO_MANY
    if kind is not ONE_TO_ONE or op in _PARTS or not operands or not outputs:
        return Mapping(kind, (kind,) * len(operands), _is_disjoint_window(op, attributes))
    if op in _DATA_FIRST:
        return Mapping(kind, (kind,) * len(operands))
    return elementwise_mapping(
        [tensor.shape for tensor in operands],
        outputs[0].shape,
        [tensor.dtype not in HOST_VALUES and tensor.kind in ("constant", "input") for tensor in operands],
    )


def elementwise_mapping(
    shapes: Sequence[tuple[Dim, ...] | None], result: tuple[Dim, ...] | None, is_given: Sequence[bool]
) -> Mapping:
    """Find the mapping types of an element-wise operator whose operands are broadcast.

    Parameters
    ----------
    shapes : sequence of shapes
        Of the operands; None where the rank is not known.
    result : shape
        Of the result.
    is_given : sequence of bool
        Which operands are weights or inputs of the function: not computed by another operator.
    """
    rank = 0 if result is None else len(result)
    is_full = [
        shape is not None and result is not None and (1,) * (rank - len(shape)) + shape == result for shape in shapes
    ]
    if not any(is_full):
        return Mapping(ONE_TO_MANY, (ONE_TO_MANY,) * len(is_full))
    types = tuple(
        ONE_TO_ONE if full or (shape is not None and is_small(shape, given)) else ONE_TO_MANY
        for full, shape, given in zip(is_full, shapes, is_given, strict=True)
    )
    return Mapping(ONE_TO_ONE, types)


def is_small(shape: Sequence[Dim], is_given: bool) -> bool:
    """Tell whether the broadcast of an operand counts as One-to-One: a scalar, or a vector that is not computed."""
    extents = sum(dim != 1 for dim in shape)
    return extents == 0 or (is_given and extents == 1)


def _sums(subscripts: str) -> bool:
    """Tell whether an Einstein summation sums over a letter; a diagonal counts as one."""
    operands, _, result = subscripts.replace(" ", "").partition("->")
    letters = operands.replace(".", "")
    return any(letter not in result for letter in letters.replace(",", "")) or any(
        len(set(term)) < len(term) for term in letters.split(",")
    )


def _is_disjoint_window(op: str, attributes: AttributeMapping[str, Any]) -> bool:
    """Tell whether an operator is a max-pool whose windows do not overlap."""
    if not op.startswith("nn.max_pool"):
        return False
    window, strides = attributes.get("pool_size", ()), attributes.get("strides", ())
    dilation = attributes.get("dilation", (1,) * len(window))
    return len(window) == len(strides) and all(
        (extent - 1) * spread < stride for extent, stride, spread in zip(window, strides, dilation, strict=True)
    )


def compose(first: MappingType, second: MappingType) -> MappingType:
    """Type of two mappings one after the other: the more complex one, but a shuffle with a reshape is Reorganize."""
    if {first, second} == {REORGANIZE, SHUFFLE}:
        return REORGANIZE
    return max(first, second)
