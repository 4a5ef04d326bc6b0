"""What moves elements, finds them by index, or changes the size of an image."""

from __future__ import annotations

from scripts.operators.case import Case, below, between, distinct, wide


def _gather_elements(axis: int) -> Case:
    return Case(
        f"gather_elements_axis_{axis}",
        f"(float[32,64,100] x, int64[32,64,100] i) => (y) {{ y = GatherElements<axis={axis}>(x, i) }}",
        {"i": below((32, 64, 100)[axis])},
    )


def _resize(name: str, channels: int, size: int, scale: float, attributes: str) -> Case:
    return Case(
        f"resize_{name}",
        f"(float[1,{channels},{size},{size}] x) => (y) <float[4] s = {{1, 1, {scale}, {scale}}}> "
        f"{{ y = Resize<{attributes}>(x, , s) }}",
    )


MOVES = (
    Case("to_channels_last", "(float[1,256,56,56] x) => (y) { y = Transpose<perm=[0,2,3,1]>(x) }"),
    Case("four_channels_last", "(float[1,4,224,224] x) => (y) { y = Transpose<perm=[0,2,3,1]>(x) }"),
    Case("to_heads", "(float[8,197,12,64] x) => (y) { y = Transpose<perm=[0,2,1,3]>(x) }"),
    Case("reverse_axes", "(float[16,31,33,65] x) => (y) { y = Transpose<perm=[3,2,1,0]>(x) }"),
    Case("concat_last", "(float[512,3,31] x, float[512,3,7] z) => (y) { y = Concat<axis=-1>(x, z, x) }"),
    Case("concat_channels", "(float[1,64,56,56] x, float[1,32,56,56] z) => (y) { y = Concat<axis=1>(x, z, x) }"),
    Case(
        "split_last",
        "(float[512,771] x) => (y) { a, b, c = Split<axis=-1>(x) d = Mul(a, b) y = Add(d, c) }",
    ),
    Case(
        "split_channels",
        "(float[2,96,56,56] x) => (a, b, c) <int64[3] n = {48, 32, 16}> { a, b, c = Split<axis=1>(x, n) }",
    ),
    Case(
        "every_second",
        """(float[1,64,128,128] x) => (y)
        <int64[2] s = {0, 0}, int64[2] e = {128, 128}, int64[2] a = {2, 3}, int64[2] t = {2, 2}> {
            y = Slice(x, s, e, a, t)
        }""",
    ),
    Case(
        "reverse_sequence",
        "(float[64,32,256] x, int64[32] n) => (y) { y = ReverseSequence(x, n) }",
        {"n": between(1, 65)},
    ),
    Case("depth_to_space", "(float[1,48,128,128] x) => (y) { y = DepthToSpace<blocksize=4>(x) }"),
    Case("expand", "(float[1,8,1,64] x) => (y) <int64[4] s = {4, 8, 128, 64}> { y = Expand(x, s) }"),
    Case("tile", "(float[64,100] x) => (y) <int64[2] r = {8, 3}> { y = Tile(x, r) }"),
    Case("tile_three_axes", "(float[8,31,33] x) => (y) <int64[3] r = {3, 4, 5}> { y = Tile(x, r) }"),
    Case("tile_channels", "(float[1,3,64,64] x) => (y) <int64[4] r = {2, 4, 3, 2}> { y = Tile(x, r) }"),
    Case("lower_triangle", "(float[8,256,256] x) => (y) { y = Trilu<upper=0>(x) }"),
    Case(
        "pad_zeros",
        "(float[1,64,100,100] x) => (y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> { y = Pad(x, p) }",
    ),
    Case(
        "pad_reflect",
        """(float[1,64,100,100] x) => (y) <int64[8] p = {0, 0, 3, 3, 0, 0, 3, 3}> { y = Pad<mode="reflect">(x, p) }""",
    ),
)

INDEXED = (
    Case("gather_rows", "(int64[8,128] i) => (y) <float[30000,384] w> { y = Gather(w, i) }", {"i": below(30000)}),
    *(_gather_elements(axis) for axis in range(3)),
    Case(
        "gather_elements_few",
        "(float[128,1000] x, int64[128,500] i) => (y) { y = GatherElements<axis=1>(x, i) }",
        {"i": below(1000)},
    ),
    Case("gather_nd", "(float[64,64,128] x, int64[500,2] i) => (y) { y = GatherND(x, i) }", {"i": below(64)}),
    Case(
        "scatter_nd",
        "(float[1000,256] x, int64[100,1] i, float[100,256] u) => (y) { y = ScatterND(x, i, u) }",
        {"i": distinct(1000)},
    ),
    Case(
        "scatter_nd_add",
        """(float[1000,256] x, int64[300,1] i, float[300,256] u) => (y) { y = ScatterND<reduction="add">(x, i, u) }""",
        {"i": below(1000)},
    ),
    Case(
        "scatter_nd_add_many",
        """(float[1000,64] x, int64[20000,1] i, float[20000,64] u) => (y) {
            y = ScatterND<reduction="add">(x, i, u)
        }""",
        {"i": below(1000)},
    ),
    Case(
        "scatter_nd_add_elements",
        """(float[300,400] x, int64[20000,2] i, float[20000] u) => (y) { y = ScatterND<reduction="add">(x, i, u) }""",
        {"i": below(300)},
    ),
    Case(
        "scatter_elements_add",
        """(float[500,128] x, int64[400,128] i, float[400,128] u) => (y) {
            y = ScatterElements<axis=0, reduction="add">(x, i, u)
        }""",
        {"i": below(500)},
    ),
    Case(
        "one_hot",
        "(int64[512] i) => (y) <int64 n = {1000}, float[2] v = {0, 1}> { y = OneHot<axis=-1>(i, n, v) }",
        {"i": below(1000)},
    ),
    Case("non_zero", "(float[512,512] x) => (y) <float z = {0}> { c = Greater(x, z) y = NonZero(c) }"),
)

IMAGES = (
    _resize("linear_2", 64, 40, 2, 'mode="linear"'),
    _resize("linear_4", 64, 32, 4, 'mode="linear"'),
    _resize("linear_1_5", 64, 40, 1.5, 'mode="linear"'),
    _resize("linear_half", 64, 80, 0.5, 'mode="linear"'),
    _resize("linear_0_6", 64, 80, 0.6, 'mode="linear"'),
    _resize(
        "nearest_2", 128, 40, 2, 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
    ),
    _resize("cubic_2", 16, 64, 2, 'mode="cubic"'),
    Case(
        "deform_conv",
        """(float[1,32,40,40] x, float[1,18,40,40] o) => (y) <float[32,32,3,3] w> {
            y = DeformConv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w, o)
        }""",
        {"o": wide},
        opset=19,
    ),
    Case("grid_sample", "(float[1,32,64,64] x, float[1,64,64,2] g) => (y) { y = GridSample(x, g) }", {"g": wide}),
)
