"""Models of a few kilobytes that build, import and run in milliseconds; written in ONNX's text form."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from tests.zoo import weights
from tests.zoo.entry import Entry, Family
from tests.zoo.inputs import picture

_CNN = """
<ir_version: 8, opset_import: ["" : 17]>
tiny_cnn (float[1,3,16,16] image) => (float[1,10] scores)
<float[8,3,3,3] stem_w, float[8] stem_b, float[16,8,3,3] conv_w, float[16] conv_b, float[16,1,3,3]
depthwise_w,
 float[16] norm_scale, float[16] norm_bias, float[16] norm_mean, float[16] norm_var, float[16,10] head_w,
 float[10] head_b>
{
  stem = Conv <pads = [1,1,1,1]> (image, stem_w, stem_b)
  stem_relu = Relu (stem)
  conv = Conv <pads = [1,1,1,1], strides = [2,2]> (stem_relu, conv_w, conv_b)
  conv_relu = Relu (conv)
  depthwise = Conv <pads = [1,1,1,1], group = 16> (conv_relu, depthwise_w)
  norm = BatchNormalization (depthwise, norm_scale, norm_bias, norm_mean, norm_var)
  sum = Add (norm, conv_relu)
  pooled = GlobalAveragePool (sum)
  flat = Flatten (pooled)
  logits = Gemm (flat, head_w, head_b)
  scores = Softmax <axis = 1> (logits)
}
"""

_MLP = """
<ir_version: 8, opset_import: ["" : 17]>
tiny_mlp (float[4,32] x) => (float[4,8] y)
<float[32,64] w1, float[64] b1, float[64,64] w2, float[64] b2, float[64,8] w3, float[8] b3>
{
  h1 = MatMul (x, w1)
  s1 = Add (h1, b1)
  r1 = Relu (s1)
  h2 = MatMul (r1, w2)
  s2 = Add (h2, b2)
  r2 = Tanh (s2)
  h3 = MatMul (r2, w3)
  y = Add (h3, b3)
}
"""

# One cell as architecture search finds them: branches of different depth that meet in sums and a concatenation.
_CELL = """
<ir_version: 8, opset_import: ["" : 17]>
tiny_cell (float[1,8,12,12] x, float[1,8,12,12] y) => (float[1,24,12,12] z)
<float[8,8,1,1] left_w, float[8,8,1,1] right_w, float[8,1,3,3] a_depthwise, float[8,8,1,1] a_pointwise,
 float[8,1,3,3] b_depthwise, float[8,8,1,1] b_pointwise, float[8,1,3,3] dilated_w, float[8] dilated_b>
{
  left = Conv (x, left_w)
  right = Conv (y, right_w)
  left_relu = Relu (left)
  a_filtered = Conv <pads = [1,1,1,1], group = 8> (left_relu, a_depthwise)
  a = Conv (a_filtered, a_pointwise)
  right_relu = Relu (right)
  b_filtered = Conv <pads = [1,1,1,1], group = 8> (right_relu, b_depthwise)
  b = Conv (b_filtered, b_pointwise)
  node2 = Add (a, b)
  pooled = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (right)
  node3 = Add (pooled, left)
  node2_relu = Relu (node2)
  dilated = Conv <pads = [2,2,2,2], dilations = [2,2], group = 8> (node2_relu, dilated_w, dilated_b)
  node4 = Add (dilated, node3)
  z = Concat <axis = 1> (node2, node3, node4)
}
"""

# One pre-norm block with two heads of 16 channels.
_TRANSFORMER = """
<ir_version: 8, opset_import: ["" : 17]>
tiny_transformer (int64[1,12] tokens) => (float[1,12,32] hidden)
<float[50,32] table, float[32] norm1_scale, float[32] norm1_bias, float[32,96] qkv_w, float[96] qkv_b,
 float[32,32] out_w, float[32] out_b, float[32] norm2_scale, float[32] norm2_bias, float[32,64] up_w,
 float[64] up_b, float[64,32] down_w, float[32] down_b, int64[5] split_heads = {1, 12, 3, 2, 16}, int64[3]
 merge_heads = {1, 12, 32}, int64[1] axis0 = {0}, float root = {4.0}, float half = {0.5}, float one = {1.0},
 float root2 = {1.4142135}>
{
  x = Gather (table, tokens)
  norm1 = LayerNormalization (x, norm1_scale, norm1_bias)
  qkv_product = MatMul (norm1, qkv_w)
  qkv = Add (qkv_product, qkv_b)
  heads = Reshape (qkv, split_heads)
  heads_first = Transpose <perm = [2,0,3,1,4]> (heads)
  q1, k1, v1 = Split <axis = 0> (heads_first)
  q = Squeeze (q1, axis0)
  k = Squeeze (k1, axis0)
  v = Squeeze (v1, axis0)
  kt = Transpose <perm = [0,1,3,2]> (k)
  products = MatMul (q, kt)
  scaled = Div (products, root)
  attention = Softmax <axis = -1> (scaled)
  mixed = MatMul (attention, v)
  mixed_first = Transpose <perm = [0,2,1,3]> (mixed)
  merged = Reshape (mixed_first, merge_heads)
  out_product = MatMul (merged, out_w)
  out = Add (out_product, out_b)
  middle = Add (x, out)
  norm2 = LayerNormalization (middle, norm2_scale, norm2_bias)
  up_product = MatMul (norm2, up_w)
  up = Add (up_product, up_b)
  up_scaled = Div (up, root2)
  up_erf = Erf (up_scaled)
  up_one = Add (up_erf, one)
  up_half = Mul (up, half)
  gelu = Mul (up_half, up_one)
  down_product = MatMul (gelu, down_w)
  down = Add (down_product, down_b)
  hidden = Add (middle, down)
}
"""

_LSTM = """
<ir_version: 8, opset_import: ["" : 17]>
tiny_lstm (float[6,2,8] x) => (float[2,4] y, float[1,2,16] final_state)
<float[1,64,8] w, float[1,64,16] r, float[1,128] b, float[16,4] head_w, float[4] head_b, int64[1] axis0 = {0}>
{
  states, final_state, final_cell = LSTM <hidden_size = 16> (x, w, r, b)
  last = Squeeze (final_state, axis0)
  logits = Gemm (last, head_w, head_b)
  y = Sigmoid (logits)
}
"""


def _build(name: str, text: str) -> onnx.ModelProto:
    return weights.fill_weights(onnx.parser.parse_model(text), seed=zlib.crc32(name.encode()))


def _normal(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(shape, dtype=np.float32)}


def _image(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"image": picture(rng, (1, 3, 16, 16))}


def _feature_maps(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: picture(rng, (1, 8, 12, 12)) for name in ("x", "y")}


def _token_ids(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"tokens": rng.integers(0, 50, (1, 12), dtype=np.int64)}


def _entry(name: str, family: Family, text: str, draw: Callable[[np.random.Generator], dict[str, np.ndarray]]) -> Entry:
    recipe = (Path(__file__), Path(weights.__file__))
    return Entry(name, family, "tiny", build=partial(_build, name, text), draw=draw, recipe=recipe)


ENTRIES = [
    _entry("tiny_cnn", "cnn", _CNN, _image),
    _entry("tiny_mlp", "cnn", _MLP, partial(_normal, "x", (4, 32))),
    _entry("tiny_cell", "irregular", _CELL, _feature_maps),
    _entry("tiny_transformer", "transformer", _TRANSFORMER, _token_ids),
    _entry("tiny_lstm", "recurrent", _LSTM, partial(_normal, "x", (6, 2, 8))),
]
