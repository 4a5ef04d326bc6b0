"""Convolutions, pooling, padding and other sizes of pictures."""

from __future__ import annotations

import itertools

import numpy as np

from tests.frontend.onnx.ops.attribute_cases.case import Draw


def collect(draw: Draw) -> None:
    """Add the cases of these operators."""
    picture = draw.normal(2, 4, 9, 11)
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        draw.case("Conv", {"X": picture, "W": draw.normal(6, 4, 3, 2)}, {"auto_pad": auto, "strides": [2, 3]}, ("W",))
        draw.case("MaxPool", {"X": picture}, {"auto_pad": auto, "kernel_shape": [3, 2], "strides": [2, 3]})
        draw.case("AveragePool", {"X": picture}, {"auto_pad": auto, "kernel_shape": [3, 2], "strides": [2, 3]})
        draw.case(
            "ConvTranspose", {"X": picture, "W": draw.normal(4, 3, 3, 2)}, {"auto_pad": auto, "strides": [2, 3]}, ("W",)
        )
    draw.case(
        "Conv",
        {"X": picture, "W": draw.normal(6, 2, 3, 2), "B": draw.normal(6)},
        {"group": 2, "dilations": [2, 1], "pads": [1, 2, 0, 1]},
        ("W", "B"),
    )
    draw.case(
        "Conv", {"X": picture, "W": draw.normal(6, 2, 3, 2)}, {"group": 2, "dilations": [2, 1], "pads": [1, 2, 0, 1]}
    )
    draw.case(
        "ConvTranspose",
        {"X": picture, "W": draw.normal(4, 3, 3, 2)},
        {"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
        ("W",),
    )
    draw.case(
        "ConvTranspose",
        {"X": picture, "W": draw.normal(4, 3, 3, 2)},
        {"dilations": [2, 2], "pads": [1, 0, 0, 1]},
        ("W",),
    )
    for c in (0, 1):
        for p in ([0, 0, 0, 0], [1, 0, 1, 1]):
            draw.case("MaxPool", {"X": picture}, {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": c, "pads": p})
            draw.case(
                "MaxPool", {"X": picture}, {"kernel_shape": [3, 2], "dilations": [2, 3], "ceil_mode": c, "pads": p}
            )
            for i in (0, 1):
                draw.case(
                    "AveragePool",
                    {"X": picture},
                    {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": c, "pads": p, "count_include_pad": i},
                    opset=19,
                )
    for s in (1, 3, 5):
        draw.case("LRN", {"X": picture}, {"size": s, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    for m in ("constant", "reflect", "edge"):
        draw.case(
            "Pad",
            {"X": picture, "P": np.array([0, 1, 2, 0, 0, 2, 1, 3]), "v": np.float32(1.5)},
            {"mode": m},
            ("P", "v"),
        )
        draw.case("Pad", {"X": picture, "P": np.array([0, 0, -2, 1, 0, 0, 1, -3])}, {"mode": m}, ("P",))
    draw.case(
        "Pad",
        {"X": picture, "P": np.array([1, 2, 0, 3]), "v": np.float32(1), "a": np.array([-1, 1])},
        {"mode": "wrap"},
        ("P", "v", "a"),
        opset=19,
    )
    for b, m in itertools.product((2,), ("DCR", "CRD")):
        draw.case("DepthToSpace", {"X": draw.normal(1, 8, 3, 5)}, {"blocksize": b, "mode": m})
    for p in (1, 2, 3):
        draw.case(
            "LpPool",
            {"X": picture},
            {"kernel_shape": [3, 2], "p": p, "strides": [2, 2], "pads": [1, 0, 1, 1]},
            opset=18,
        )
        draw.case("GlobalLpPool", {"X": picture}, {"p": p})
    for mode, ct in itertools.product(
        ("nearest", "linear", "cubic"), ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ):
        draw.case(
            "Resize",
            {"X": picture, "r": None, "s": np.array([1, 1, 1.7, 0.55], "float32")},
            {"mode": mode, "coordinate_transformation_mode": ct, "nearest_mode": "floor"},
            ("s",),
        )
        draw.case(
            "Resize",
            {"X": picture, "r": None, "s": None, "z": np.array([2, 4, 5, 20])},
            {
                "mode": mode,
                "coordinate_transformation_mode": ct,
                "cubic_coeff_a": -0.5,
                "exclude_outside": int(mode == "cubic"),
            },
            ("z",),
        )
    for nm in ("round_prefer_floor", "round_prefer_ceil", "ceil", "floor"):
        draw.case(
            "Resize",
            {"X": picture, "r": None, "s": np.array([1, 1, 2.5, 0.5], "float32")},
            {"mode": "nearest", "nearest_mode": nm},
            ("s",),
        )
    for op, opset in itertools.product(("AveragePool", "MaxPool"), (11, 19)):
        # The last window would begin in the padding behind the input, and is left out.
        windows = {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}
        draw.case(op, {"X": draw.normal(1, 2, 8, 11)}, windows, opset=opset)
    draw.case("GlobalAveragePool", {"X": picture})
    draw.case("GlobalMaxPool", {"X": picture})
    draw.case("SpaceToDepth", {"X": draw.normal(1, 2, 4, 6)}, {"blocksize": 2})
