"""Small sound ONNX models of many kinds, for a script that damages them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

HEADER = '<ir_version: {ir}, opset_import: ["" : {opset}{more}]>\n'


def _parsed(text: str, opset: int = 17, ir: int = 8, more: str = "", **weights: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(HEADER.format(ir=ir, opset=opset, more=more) + text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") * np.float32(0.3)


def _ints(*values: int) -> np.ndarray:
    return np.asarray(values, "int64")


def _convolution() -> onnx.ModelProto:
    return _parsed(
        """g (float[1,3,6,6] x) => (float[1,4,1,1] y) {
            a = Conv <kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]> (x, w, b)
            n = BatchNormalization <epsilon=0.001> (a, s, t, m, v)
            r = Relu (n)
            y = GlobalAveragePool (r) }""",
        w=_noise(4, 3, 3, 3), b=_noise(4), s=np.ones(4, "f"), t=_noise(4), m=_noise(4), v=np.ones(4, "f"),
    )  # fmt: skip


def _pooling() -> onnx.ModelProto:
    return _parsed(
        """g (float[1,4,4,4] x) => (float[1,5] y) {
            d = Conv <group=4, kernel_shape=[3,3], pads=[1,1,1,1]> (x, dw)
            p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (d)
            f = Flatten <axis=1> (p)
            y = Gemm <transB=1> (f, fc, fb) }""",
        dw=_noise(4, 1, 3, 3), fc=_noise(5, 16), fb=_noise(5),
    )  # fmt: skip


def _perceptron() -> onnx.ModelProto:
    return _parsed(
        """g (float[N,6] x) => (float[N,3] y) {
            a = MatMul (x, w)
            b = Add (a, c)
            d = Gelu <approximate="tanh"> (b)
            e = LayerNormalization <axis=-1> (d, s, t)
            y = Softmax <axis=-1> (e) }""",
        opset=20, ir=9, w=_noise(6, 3), c=_noise(3), s=np.ones(3, "f"), t=np.zeros(3, "f"),
    )  # fmt: skip


def _attention() -> onnx.ModelProto:
    return _parsed(
        """g (float[1,4,8] x, bool[1,4] mask) => (float[1,4,8] y) {
            q = MatMul (x, wq)
            qs = Reshape (q, heads)
            qt = Transpose <perm=[0,2,1,3]> (qs)
            u = Unsqueeze (mask, axes)
            low = Cast <to=1> (u)
            far = Mul (low, big)
            zm = Add (qt, far)
            p = Softmax <axis=-1> (zm)
            joined = Transpose <perm=[0,2,1,3]> (p)
            y = Reshape (joined, back) }""",
        wq=_noise(8, 8), heads=_ints(1, 4, 2, 4), axes=_ints(1, 2), big=np.float32(-1e9), back=_ints(0, 0, -1),
    )  # fmt: skip


def _shapes() -> onnx.ModelProto:
    return _parsed(
        """g (float[2,3,4] x) => (float[O] y, int64[P] z) {
            s = Shape (x)
            two = Constant <value_ints=[1]> ()
            d = Gather <axis=0> (s, two)
            minus = Constant <value_ints=[-1]> ()
            t = Concat <axis=0> (minus, d)
            r = Reshape (x, t)
            c = Slice (r, starts, ends, axes, steps)
            e = Expand (c, wide)
            p = Pad <mode="constant"> (e, pads, zero)
            v = ReduceMean <axes=[0], keepdims=0> (p)
            y = Squeeze (v)
            w = Tile (s, twice)
            z = Cast <to=7> (w) }""",
        starts=_ints(1), ends=_ints(100), axes=_ints(0), steps=_ints(2), wide=_ints(1, 1), pads=_ints(1, 0, 0, 1),
        zero=np.float32(0), twice=_ints(2),
    )  # fmt: skip


def _indices() -> onnx.ModelProto:
    return _parsed(
        """g (float[3,4] x, int64[2] i) => (float[K,4] e, float[3] m) {
            g = Gather <axis=0> (x, i)
            e = Where (c, g, zero)
            u = ScatterND (x, at, upd)
            q = GatherElements <axis=1> (u, el)
            m = ReduceMax <axes=[1], keepdims=0> (q) }""",
        at=_ints(0, 2).reshape(2, 1), upd=_noise(2, 4), el=_ints(0, 1, 2).reshape(3, 1),
        c=np.asarray([True, False, True, False]), zero=np.float32(0),
    )  # fmt: skip


def _sorting() -> onnx.ModelProto:
    return _parsed(
        """g (float[3,4] x) => (float[3,2] v, int64[3,2] t, float[3,4] h) {
            v, t = TopK <axis=1, largest=1> (x, k)
            a = ArgMax <axis=1, keepdims=0> (x)
            h = OneHot <axis=-1> (a, depth, values) }""",
        k=_ints(2),
        depth=_ints(4)[0],
        values=np.asarray([0, 1], "f"),
    )


def _recurrent() -> onnx.ModelProto:
    return _parsed(
        """g (float[3,1,3] x) => (float[3,1,1,2] y, float[1,1,2] h) {
            y, h, c = LSTM <hidden_size=2> (x, w, r, b) }""",
        w=_noise(1, 8, 3),
        r=_noise(1, 8, 2),
        b=_noise(1, 16),
    )


def _both_directions() -> onnx.ModelProto:
    return _parsed(
        """g (float[2,1,3] x) => (float[2,2,1,2] z) {
            z, last = GRU <hidden_size=2, direction="bidirectional", linear_before_reset=1> (x, gw, gr) }""",
        gw=_noise(2, 6, 3),
        gr=_noise(2, 6, 2),
    )


def _branches() -> onnx.ModelProto:
    model = _parsed(
        """g (float[2,3] x, bool c) => (float[2,3] y) {
            y = If (c) <
                then_branch = a () => (float[2,3] t) { t = Add (x, one) },
                else_branch = b () => (float[2,3] e) { m = Mul (x, one) e = Neg (m) }> }""",
        one=np.float32(1.5),
    )
    model.graph.input[1].type.tensor_type.shape.SetInParent()  # a scalar
    return model


def _loop() -> onnx.ModelProto:
    return _parsed(
        """g (float[3] x) => (float[3] y, float[4,3] z) {
            y, z = Loop (n, yes, x) <
                body = b (int64 i, bool go, float[3] s) => (bool again, float[3] t, float[3] o) {
                    again = Identity (go)
                    t = Add (s, step)
                    o = Mul (t, t) }> }""",
        n=_ints(4)[0], yes=np.asarray(True), step=_noise(3),
    )  # fmt: skip


def _scan() -> onnx.ModelProto:
    return _parsed(
        """g (float[2] s, float[3,2] x) => (float[2] y, float[3,2] z) {
            y, z = Scan (s, x) <
                num_scan_inputs = 1,
                body = b (float[2] a, float[2] e) => (float[2] t, float[2] o) {
                    t = Add (a, e)
                    o = Tanh (t) }> }""",
    )


def _resizing() -> onnx.ModelProto:
    return _parsed(
        """g (float[1,2,4,5] x) => (float[1,2,8,10] y, float[1,2,7,9] t) {
            y = Resize <mode="linear", coordinate_transformation_mode="half_pixel"> (x, roi, scales)
            t = ConvTranspose <kernel_shape=[1,1], strides=[2,2]> (x, w) }""",
        roi=np.zeros(0, "f"), scales=np.asarray([1, 1, 2, 2], "f"), w=_noise(2, 2, 1, 1),
    )  # fmt: skip


def _quantized() -> onnx.ModelProto:
    return _parsed(
        """g (float[2,6] x) => (float[2,4] y) {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            e = DequantizeLinear <axis=1> (w, ws, wz)
            y = MatMul (d, e) }""",
        s=np.float32(0.05), z=np.uint8(128), w=(_noise(6, 4) * 100).astype("int8"),
        ws=np.full(4, 0.01, "f"), wz=np.zeros(4, "int8"),
    )  # fmt: skip


def _old() -> onnx.ModelProto:
    return _parsed(
        """g (float[1,2,6] x) => (float[1,12] y) {
            u = Unsqueeze <axes=[0]> (x)
            s = Squeeze <axes=[0]> (u)
            c = Clip <min=-1.0, max=1.0> (s)
            p = Pad <pads=[0,0,1,0,0,1]> (c)
            l = Slice <starts=[1], ends=[-1], axes=[2]> (p)
            f = Flatten (l)
            d = Dropout <ratio=0.5> (f)
            y = Softmax <axis=1> (d) }""",
        opset=9,
        ir=4,
    )


def _function() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] y) { a = local.twice <k = 3.0> (x) y = local.twice <k = 2.0> (a) }
        <domain: "local", opset_import: ["" : 17]>
        twice <k> (v) => (w) { c = Constant <value_float: float = @k> () w = Mul (v, c) }"""
    )
    return model


def _einsum() -> onnx.ModelProto:
    return _parsed(
        """g (float[2,3] a, float[3,4] b, int32[2,4] i) => (float[2,4] y, float[2,4] z, int32[2,4] m) {
            e = Einsum <equation="ij,jk->ik"> (a, b)
            y = CumSum (e, one)
            f = Trilu <upper=0> (y)
            z = Clip (f, low, high)
            m = Mod <fmod=0> (i, three) }""",
        one=_ints(1)[0], low=np.float32(-2), high=np.float32(2), three=np.int32(3),
    )  # fmt: skip


@functools.cache
def small_models() -> dict[str, bytes]:
    """Make the models; give them serialized, by name."""
    builders = (
        _convolution, _pooling, _perceptron, _attention, _shapes, _indices, _sorting, _recurrent, _both_directions,
        _branches, _loop, _scan, _resizing, _quantized, _old, _function, _einsum,
    )  # fmt: skip
    return {builder.__name__.strip("_"): builder().SerializeToString() for builder in builders}
