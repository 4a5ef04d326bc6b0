"""Extents that cannot be zero although TVM's analyzer does not tell: pictures that are cut into windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.frontend.onnx.text import graph
from tests.shapes.test_open_operators import check
from tvm_ext.frontend.onnx.ops.positive import is_positive, with_least

H = tirx.Var("h", "int64")


def padded(extent: Any, size: int) -> Any:
    """Round up to a multiple, as models do."""
    number = tirx.IntImm("int64", size)
    return extent + tirx.floormod(number - tirx.floormod(extent, number), number)


@pytest.mark.parametrize(
    ("extent", "positive"),
    [
        (H, True),
        (H - 1, False),
        (tirx.floordiv(padded(H, 7), 7), True),
        (tirx.floordiv(H, 2), False),
        (tirx.floordiv(tirx.floordiv(H + 5, 2), 3), True),
        (100 - H, False),
        (tirx.floormod(H, 3), False),
        (tirx.floormod(H, 3) + 1, True),
        (tirx.max(H, 1), False),  # not made of quotients and remainders: left to the analyzer
        (H * H, False),
    ],
)
def test_expressions_of_one_variable(extent: Any, positive: bool) -> None:
    with with_least({H: 1}):
        assert is_positive(extent) is positive
    assert not is_positive(H)


def test_a_picture_is_cut_into_windows_and_put_together_again() -> None:
    """Without the proof each reshape would hold the choices of those before it, and TVM's simplifier would not end."""
    model = graph(
        "g (float[n,h,w,8] x) => (float[n,h,w,8] y) { s = Shape(x) h0 = Gather(s, one) w0 = Gather(s, two) "
        "hm = Mod(h0, size) wm = Mod(w0, size) hp = Sub(size, hm) wp = Sub(size, wm) hq = Mod(hp, size) "
        "wq = Mod(wp, size) hu = Unsqueeze(hq, first) wu = Unsqueeze(wq, first) "
        "pads = Concat<axis = 0>(zero, zero, zero, zero, zero, hu, wu, zero) p = Pad(x, pads) sp = Shape(p) "
        "b = Gather(sp, zero) hh = Gather(sp, at1) ww = Gather(sp, at2) hd = Div(hh, seven) wd = Div(ww, seven) "
        "cut = Concat<axis = 0>(b, hd, seven, wd, seven, eight) r = Reshape(p, cut) "
        "t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(r) v = Reshape(t, windows) m = ReduceMean<axes = [1]>(v) "
        "d = Sub(v, m) back = Concat<axis = 0>(b, hd, wd, seven, seven, eight) o = Reshape(d, back) "
        "u = Transpose<perm = [0, 1, 3, 2, 4, 5]>(o) q = Reshape(u, sp) hw = Slice(s, at1, at3) "
        "y = Slice(q, begin, hw, axes) }",
        14,
        one=np.array(1), two=np.array(2), size=np.array(7), first=np.array([0]), zero=np.array([0]), at1=np.array([1]),
        at2=np.array([2]), at3=np.array([3]), seven=np.array([7]), eight=np.array([8]), windows=np.array([-1, 49, 8]),
        begin=np.array([0, 0]), axes=np.array([1, 2]),
    )  # fmt: skip
    check(model, *({"x": (*size, 8)} for size in ((1, 5, 7), (2, 17, 17), (3, 33, 9), (1, 3, 3), (1, 14, 21))))
