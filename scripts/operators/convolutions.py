"""Convolutions and pooling."""

from __future__ import annotations

from scripts.operators.case import Case

_WAVENET = "\n".join(
    f"c{i} = Conv<dilations=[{2**i}], pads=[{2**i}, 0]>(x{i}, w{i}) t{i} = Tanh(c{i}) x{i + 1} = Add(t{i}, x{i})"
    for i in range(6)
)

CONVOLUTIONS = (
    Case(
        "wavenet",
        f"(float[1,64,2000] x0) => (x6) <{', '.join(f'float[64,64,2] w{i}' for i in range(6))}> {{ {_WAVENET} }}",
    ),
    Case(
        "conv3d",
        """(float[1,3,16,56,56] x) => (y) <float[32,3,3,3,3] w, float[64,32,3,3,3] v> {
            a = Conv<pads=[1,1,1,1,1,1]>(x, w) b = Relu(a)
            c = MaxPool<kernel_shape=[2,2,2], strides=[2,2,2]>(b) y = Conv<pads=[1,1,1,1,1,1]>(c, v)
        }""",
    ),
    Case(
        "conv_transpose_2_and_4",
        """(float[1,128,28,28] x) => (y) <float[128,64,2,2] w, float[64,32,4,4] v> {
            a = ConvTranspose<strides=[2,2]>(x, w) b = Relu(a) y = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(b, v)
        }""",
    ),
    Case(
        "conv_transpose_3x3_stride_2",
        """(float[1,64,28,28] x) => (y) <float[64,64,3,3] w> {
            y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(x, w)
        }""",
    ),
    Case(
        "conv_transpose_1d",
        "(float[1,256,100] x) => (y) <float[256,128,16] w> { y = ConvTranspose<strides=[8], pads=[4,4]>(x, w) }",
    ),
    Case(
        "depthwise_7x7",
        "(float[1,96,56,56] x) => (y) <float[96,1,7,7] w> { y = Conv<pads=[3,3,3,3], group=96>(x, w) }",
    ),
    Case(
        "depthwise_1d_31",
        "(float[1,256,500] x) => (y) <float[256,1,31] w> { y = Conv<pads=[15,15], group=256>(x, w) }",
    ),
    Case(
        "depthwise_dilated",
        """(float[1,144,33,33] x) => (y) <float[144,1,3,3] w> {
            y = Conv<pads=[2,2,2,2], dilations=[2,2], group=144>(x, w)
        }""",
    ),
    Case(
        "depthwise_stride_2",
        """(float[1,96,56,56] x) => (y) <float[96,1,3,3] w> {
            y = Conv<pads=[1,1,1,1], strides=[2,2], group=96>(x, w)
        }""",
    ),
    Case(
        "groups_of_4_channels",
        "(float[1,128,56,56] x) => (y) <float[128,4,3,3] w> { y = Conv<pads=[1,1,1,1], group=32>(x, w) }",
    ),
    Case(
        "two_groups_5x5",
        "(float[1,96,27,27] x) => (y) <float[256,48,5,5] w> { y = Conv<pads=[2,2,2,2], group=2>(x, w) }",
    ),
    Case(
        "conv_11x11_stride_4",
        "(float[1,3,224,224] x) => (y) <float[64,3,11,11] w> { y = Conv<strides=[4,4]>(x, w) }",
    ),
    Case("patches_16", "(float[1,3,224,224] x) => (y) <float[192,3,16,16] w> { y = Conv<strides=[16,16]>(x, w) }"),
    Case(
        "conv_dilated",
        "(float[1,64,65,65] x) => (y) <float[64,64,3,3] w> { y = Conv<pads=[6,6,6,6], dilations=[6,6]>(x, w) }",
    ),
    Case(
        "conv_1x7_7x1",
        """(float[1,128,17,17] x) => (y) <float[128,128,1,7] w, float[192,128,7,1] v> {
            a = Conv<pads=[0,3,0,3]>(x, w) y = Conv<pads=[3,0,3,0]>(a, v)
        }""",
    ),
    Case("conv_batch_16", "(float[16,64,14,14] x) => (y) <float[64,64,3,3] w> { y = Conv<pads=[1,1,1,1]>(x, w) }"),
    Case("conv_1x1_odd", "(float[1,77,29,29] x) => (y) <float[131,77,1,1] w> { y = Conv(x, w) }"),
    Case(
        "conv_1d_spectrum",
        """(float[1,80,600] x) => (y) <float[192,80,3] w, float[192] b> {
            a = Conv<pads=[1,1], strides=[2]>(x, w, b) y = Relu(a)
        }""",
    ),
    Case(
        "two_convs_28x28",
        """(float[1,1,28,28] x) => (y) <float[10,1,5,5] w, float[20,10,5,5] v, float[320,10] m> {
            a = Conv(x, w) b = Relu(a) c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
            d = Conv(c, v) e = Relu(d) f = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e)
            g = Flatten(f) y = Gemm(g, m)
        }""",
    ),
)

POOLING = (
    Case("average_7x7", "(float[1,64,56,56] x) => (y) { y = AveragePool<kernel_shape=[7,7], pads=[3,3,3,3]>(x) }"),
    Case("max_13x13", "(float[1,128,20,20] x) => (y) { y = MaxPool<kernel_shape=[13,13], pads=[6,6,6,6]>(x) }"),
    Case(
        "max_3x3_stride_2",
        "(float[1,64,112,112] x) => (y) { y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }",
    ),
    Case(
        "average_3d",
        """(float[1,32,16,28,28] x) => (y) {
            y = AveragePool<kernel_shape=[3,3,3], strides=[2,2,2], pads=[1,1,1,1,1,1]>(x)
        }""",
    ),
    Case(
        "max_3_channels",
        "(float[1,3,224,224] x) => (y) { y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }",
    ),
    Case(
        "average_3_channels", "(float[1,3,224,224] x) => (y) { y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) }"
    ),
    Case("max_apart", "(float[1,64,112,112] x) => (y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"),
    Case("average_apart", "(float[1,64,112,112] x) => (y) { y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x) }"),
    Case("global_average", "(float[1,512,14,14] x) => (y) { y = GlobalAveragePool(x) }"),
    Case("lrn", "(float[1,96,55,55] x) => (y) { y = LRN<size=5>(x) }"),
)
