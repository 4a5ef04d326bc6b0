"""Recurrent layers and normalisations."""

from __future__ import annotations

import numpy as np

from tests.frontend.onnx.ops.attribute_cases.case import Draw


def collect(draw: Draw) -> None:
    """Add the cases of these operators."""
    picture = draw.normal(2, 4, 9, 11)
    draw.case(
        "LayerNormalization",
        {"X": draw.normal(2, 3, 4), "s": draw.normal(4)},
        {},
        ("s",),
        outs=("Y", "M", "I"),
        types=("float32",) * 3,
    )
    draw.case(
        "InstanceNormalization", {"X": picture, "s": draw.normal(4), "b": draw.normal(4)}, {"epsilon": 0.1}, ("s", "b")
    )
    draw.case(
        "GroupNormalization",
        {"X": picture, "s": draw.normal(4), "b": draw.normal(4)},
        {"epsilon": 0.1, "num_groups": 2},
        ("s", "b"),
        opset=21,
    )
    draw.case(
        "BatchNormalization",
        {"X": picture, "s": draw.normal(4), "b": draw.normal(4), "m": draw.normal(4), "v": abs(draw.normal(4))},
        {"epsilon": 0.1},
        ("s", "b", "m", "v"),
    )
    draw.case(
        "BatchNormalization",
        {"X": picture, "s": draw.normal(4), "b": draw.normal(4), "m": draw.normal(4), "v": abs(draw.normal(4))},
        {"epsilon": 0.1},
    )
    for x, parameters in (
        (picture, ()),
        (picture, ("s", "b", "m", "v")),
        (picture[:, :, 0], ()),
        (picture[:, :, 0, 0], ()),
    ):
        draw.case(
            "BatchNormalization",
            {"X": x, "s": draw.normal(4), "b": draw.normal(4), "m": draw.normal(4), "v": abs(draw.normal(4))},
            {"epsilon": 0.1, "momentum": 0.75, "training_mode": 1},
            parameters,
            outs=("Y", "M", "V"),
        )
    draw.case("MeanVarianceNormalization", {"X": picture}, {"axes": [0, 2]})
    draw.case("MeanVarianceNormalization", {"X": picture})
    draw.case("Dropout", {"X": draw.normal(3, 5)})
    for d in ("forward", "reverse", "bidirectional"):
        directions = 2 if d == "bidirectional" else 1
        for lbr in (0, 1):
            draw.case(
                "GRU",
                {
                    "X": draw.normal(5, 2, 3),
                    "W": draw.normal(directions, 12, 3),
                    "R": draw.normal(directions, 12, 4),
                    "B": draw.normal(directions, 24),
                },
                {"hidden_size": 4, "direction": d, "linear_before_reset": lbr},
                ("W", "R", "B"),
                outs=("Y", "H"),
            )
        draw.case(
            "LSTM",
            {
                "X": draw.normal(5, 2, 3),
                "W": draw.normal(directions, 16, 3),
                "R": draw.normal(directions, 16, 4),
                "B": draw.normal(directions, 32),
                "l": np.array([5, 3], "int32"),
                "h": draw.normal(directions, 2, 4),
                "c": draw.normal(directions, 2, 4),
                "P": draw.normal(directions, 12),
            },
            {"hidden_size": 4, "direction": d, "clip": 0.7},
            ("W", "R", "B", "P"),
            outs=("Y", "H", "C"),
        )
        draw.case(
            "RNN",
            {"X": draw.normal(5, 2, 3), "W": draw.normal(directions, 4, 3), "R": draw.normal(directions, 4, 4)},
            {"hidden_size": 4, "direction": d, "activations": ["Relu"] * directions},
            ("W", "R"),
            outs=("Y", "H"),
        )
