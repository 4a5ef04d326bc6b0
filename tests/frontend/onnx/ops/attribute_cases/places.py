"""Elements that are found, moved or written by their places."""

from __future__ import annotations

import itertools

import numpy as np

from tests.frontend.onnx.ops.attribute_cases.case import Draw


def collect(draw: Draw) -> None:
    """Add the cases of these operators."""
    for axis, red in enumerate(("add", "max", "none", "mul")):  # fewer elements than the tensor along all axes
        index = np.arange(16).reshape(2, 2, 2, 2) % (2 if axis == 3 else 3) - 1
        if red == "none":
            index = index * 0 + np.array([[-1], [0]])
        draw.case(
            "ScatterElements",
            {"X": draw.normal(3, 4, 3, 5), "i": index, "u": draw.normal(2, 2, 2, 2)},
            {"axis": axis, "reduction": red},
            opset=18,
        )
    for red in ("none", "add", "mul", "max", "min"):
        draw.case(
            "ScatterElements",
            {"X": draw.normal(4, 5), "i": np.array([[0, -1, 2], [1, 1, 3]]), "u": draw.normal(2, 3)},
            {"axis": 0, "reduction": red},
            opset=18,
        )
        draw.case(
            "ScatterElements",
            {"X": draw.normal(4, 5), "i": np.array([[0, 0, 2], [1, 1, 1]]), "u": draw.normal(2, 3)},
            {"axis": 1, "reduction": red if red != "none" else "add"},
            opset=18,
        )
        draw.case(
            "ScatterND",
            {
                "X": draw.normal(4, 5),
                "i": np.array([[0], [2], [0]] if red != "none" else [[0], [2], [-1]]),
                "u": draw.normal(3, 5),
            },
            {"reduction": red},
            opset=18,
        )
    draw.case("GatherND", {"X": draw.normal(2, 3, 4), "i": np.array([[[1, -1]], [[0, 2]]])}, {"batch_dims": 1})
    draw.case("GatherElements", {"X": draw.normal(2, 3, 4), "i": np.array([[[1, -1]], [[0, 2]]])}, {"axis": 2})
    draw.case("Gather", {"X": draw.normal(2, 3, 4), "i": np.array([[1, -1], [0, -3]])}, {"axis": 1})
    for u, k in itertools.product((0, 1), (-2, 0, 1, 9)):
        draw.case("Trilu", {"X": draw.normal(2, 3, 5), "k": np.array(k)}, {"upper": u}, ("k",))
    for n in (0, 1):
        draw.case(
            "TopK",
            {"X": np.round(draw.normal(3, 7)), "k": np.array([3])},
            {"axis": 1 - n, "largest": n, "sorted": 1},
            ("k",),
            outs=("V", "I"),
            types=("float32", "int64"),
        )
    draw.case("Tile", {"X": draw.normal(2, 3), "r": np.array([2, 3])}, {}, ("r",))
    draw.case("Expand", {"X": draw.normal(3, 1), "s": np.array([2, 1, 4])}, {}, ("s",))
    draw.case("Split", {"X": draw.normal(7, 3), "s": np.array([2, 5])}, {"axis": 0}, ("s",), outs=("A", "B"))
    draw.case("Split", {"X": draw.normal(7, 3)}, {"axis": 0, "num_outputs": 3}, outs=("A", "B", "D"), opset=18)
    for st, en, ax, sp in (
        ([1], [-1], [1], [1]),
        ([-1], [-100], [1], [-2]),
        ([5, 1], [0, 100], [0, -1], [-1, 2]),
        ([3], [3], [0], [1]),
    ):
        draw.case(
            "Slice",
            {"X": draw.normal(6, 7), "s": np.array(st), "e": np.array(en), "a": np.array(ax), "t": np.array(sp)},
            {},
            ("s", "e", "a", "t"),
        )
    draw.case(
        "OneHot",
        {"i": np.array([0, -1, 9, 2]), "d": np.array(4), "v": np.array([0, 5], "float32")},
        {"axis": 0},
        ("d", "v"),
        types=("float32",),
    )
    draw.case("Compress", {"X": draw.normal(4, 3), "c": np.array([True, False, True])}, {"axis": 0}, ("c",))
    matrix = np.array([[2, 1, 1], [3, 2, 1], [2, 1, 1]], "float32")
    for x, attributes in (
        (np.array([2, 1, 1, 3, 2.0], "float32"), {}),
        (matrix, {}),
        (matrix, {"sorted": 0}),
        (matrix, {"axis": 0}),
        (matrix, {"axis": -1, "sorted": 0}),
        (np.array(2, "float32"), {}),
    ):
        draw.case(
            "Unique",
            {"X": x},
            attributes,
            (),
            outs=("Y", "A", "B", "D"),
            types=("float32", "int64", "int64", "int64"),
        )
    draw.case("NonZero", {"X": np.round(draw.normal(3, 4))}, types=("int64",))
    draw.case("Range", {"s": np.array(1), "l": np.array(10), "d": np.array(3)}, {}, ("s", "l", "d"))
    draw.case(
        "ReverseSequence", {"X": draw.normal(4, 3, 2), "l": np.array([4, 2, 1])}, {"time_axis": 0, "batch_axis": 1}
    )
    draw.case("EyeLike", {"X": draw.normal(3, 5)}, {"k": -1})
