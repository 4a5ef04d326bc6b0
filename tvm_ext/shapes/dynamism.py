"""How much of an operator's result is known before it runs: the four classes of SOD2 (section 5.3), as a table.

- ``ISDO``, input shapes determine the output: ``Shape`` of a tensor.
- ``ISDOS``, input shapes determine the output's shape: convolutions, element-wise operators.
- ``ISVDOS``, input shapes and the values of some inputs determine the output's shape: ``Reshape``.
- ``EDO``, only running it tells: ``NonZero``.

Where the deciding values of an ``ISVDOS`` operator are constants, it is an ``ISDOS`` one: propagating constants lowers
classes. Rows follow the definitions where these and the source's table 5.2 differ: ``ConstantOfShape`` gets its shape
from a value (erratum E19), ``GroupNormalization`` has the shape of its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Dynamism = Literal["ISDO", "ISDOS", "ISVDOS", "EDO"]


@dataclass(frozen=True)
class Row:
    """One operator.

    Attributes
    ----------
    dynamism : str
        Its class while nothing is known of its inputs' values.
    deciding : tuple of int
        Of an ``ISVDOS`` operator: the inputs whose values decide the shape.
    """

    dynamism: Dynamism
    deciding: tuple[int, ...] = ()

    def lowered(self, constant: Mapping[int, bool]) -> Dynamism:
        """Give the class where the values of some inputs are constants.

        Parameters
        ----------
        constant : mapping from int to bool
            Of the inputs that are given: whether the values are known.
        """
        decided = all(constant.get(position, True) for position in self.deciding)
        return "ISDOS" if self.dynamism == "ISVDOS" and decided else self.dynamism


def _rows(dynamism: Dynamism, names: str) -> dict[str, Row]:
    """Read ``Name`` or ``Name:0,1`` with the deciding inputs."""
    rows = {}
    for entry in names.split():
        name, _, inputs = entry.partition(":")
        rows[name] = Row(dynamism, tuple(map(int, filter(None, inputs.split(",")))))
    return rows


ONNX: Mapping[str, Row] = MappingProxyType(
    {
        **_rows("ISDO", "Constant EyeLike Shape Size"),
        **_rows(
            "ISDOS",
            """
            Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization
            Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike CausalConvWithState
            Ceil Celu Clip Concat Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DeformConv DepthToSpace
            DequantizeLinear Det Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Flatten Floor
            FlexAttention GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool
            Greater GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax Identity
            InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual LinearAttention
            Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxRoiPool Mean
            MeanVarianceNormalization Min Mish Mod Mul Multinomial Neg NegativeLogLikelihoodLoss Not
            OptionalHasElement Or PRelu Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN RandomNormal
            RandomNormalLike RandomUniform RandomUniformLike Reciprocal RegexFullMatch Relu ReverseSequence RoiAlign
            RotaryEmbedding Round Scatter ScatterElements ScatterND Selu SequenceLength Shrink Sigmoid Sign Sin Sinh
            Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Sqrt StringConcat Sub Sum SwiGLU Swish Tan
            Tanh TensorScatter TfIdfVectorizer ThresholdedRelu Transpose Trilu Where Xor
            """,
        ),
        **_rows(
            "ISVDOS",
            """
            AffineGrid:1 BlackmanWindow:0 CenterCropPad:1 Col2Im:1,2 ConstantOfShape:0 DFT:1,2 Expand:1
            HammingWindow:0 HannWindow:0 MaxUnpool:2 MelWeightMatrix:0,1 OneHot:1 Pad:1,3 Range:0,1,2 ReduceL1:1
            ReduceL2:1 ReduceLogSum:1 ReduceLogSumExp:1 ReduceMax:1 ReduceMean:1 ReduceMin:1 ReduceProd:1 ReduceSum:1
            ReduceSumSquare:1 Reshape:1 Resize:1,2,3 STFT:1,3 Slice:1,2,3,4 Split:1 Squeeze:1 Tile:1 TopK:1
            Unsqueeze:1 Upsample:1
            """,
        ),
        **_rows(
            "EDO",
            """
            Compress ConcatFromSequence If ImageDecoder Loop NonMaxSuppression NonZero Optional OptionalGetElement
            Scan SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceMap SplitToSequence
            StringNormalizer StringSplit Unique
            """,
        ),
    }
)
"""Operators of ONNX's own domain. What works on sequences and strings is only known by running it."""

CONTRIB: Mapping[str, Row] = MappingProxyType(
    _rows(
        "ISDOS",
        """
        Attention BiasGelu BiasSplitGelu DynamicQuantizeMatMul EmbedLayerNormalization FastGelu FusedConv FusedGemm
        FusedMatMul Gelu GroupQueryAttention MatMulIntegerToFloat MatMulNBits MultiHeadAttention NhwcMaxPool QAttention
        QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul
        QLinearSigmoid QLinearSoftmax QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization
        """,
    )
)
"""Operators of onnxruntime's domain ``com.microsoft``."""

RELAX: Mapping[str, Row] = MappingProxyType(
    {
        **_rows("ISDO", "eye_like ones_like shape_of size zeros_like"),
        **_rows(
            "ISDOS",
            """
            abs acos acosh add argmax argmin argsort asin asinh astype atan atan2 atanh bitwise_and bitwise_not
            bitwise_or bitwise_xor bucketize ceil clip collapse_sum_like concat cos cosh cumprod cumsum dequantize
            divide einsum equal erf ewise_fma exp expand_dims flatten flip floor floor_divide floor_mod full_like
            gather_elements gather_nd greater greater_equal image.affine_grid image.grid_sample index_put index_tensor
            isfinite isinf isnan layout_transform left_shift less less_equal log log_add_exp logical_and logical_not
            logical_or logical_xor matmul max maximum mean median meshgrid min minimum mod multinomial_from_uniform
            multiply negative nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.attention
            nn.attention_bias nn.attention_var_len nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.batch_flatten
            nn.batch_norm nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d nn.conv3d_transpose
            nn.cross_entropy_with_logits nn.dropout nn.gelu nn.gelu_tanh nn.group_norm nn.instance_norm nn.layer_norm
            nn.leakyrelu nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.nll_loss nn.pad nn.pixel_shuffle
            nn.prelu nn.relu nn.rms_norm nn.selu nn.silu nn.softmax nn.softplus not_equal one_hot outer permute_dims
            power prod quantize repeat reverse_sequence right_shift round rsqrt scatter_elements scatter_nd
            shape_to_tensor sigmoid sign sin sinh slice_scatter sort split sqrt square squeeze stack std strided_slice
            subtract sum take tan tanh tensor_to_shape tile topk tril triu trunc variance
            vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_transform_loc
            vision.non_max_suppression vision.roi_align vision.roi_pool where wrap_param
            """,
        ),
        **_rows(
            "ISVDOS",
            """
            arange:0,1,2 broadcast_to:1 collapse_sum_to:1 dynamic_strided_slice:1,2,3 eye:0,1 full:0 hamming_window:0
            image.resize2d:1 image.resize3d:1 ones:0 reshape:1 zeros:0
            """,
        ),
        **_rows("EDO", "nonzero unique"),
    }
)
"""Operators of Relax on tensors, without ``relax.``; a shape is an input there, whose elements are its value."""


def row_of(operator: str, domain: str = "") -> Row:
    """Look an operator up; one that is in no table is only known by running it."""
    table = {"": ONNX, "ai.onnx": ONNX, "com.microsoft": CONTRIB, "relax": RELAX}.get(domain, {})
    return table.get(operator, Row("EDO"))
