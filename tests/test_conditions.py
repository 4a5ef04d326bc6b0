"""What is said of sizes that a model cannot work with."""

from __future__ import annotations

import pytest

from tvm_ext.conditions import check_conditions
from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import TensorSpec

IMAGE = TensorSpec("x", ("h", "w"), "float32", ((4, 90), (4, 90)))


@pytest.mark.parametrize(
    ("h", "w", "taken"),
    [
        (7, 8, r"give sizes that it takes \(h = 4 or 8\)"),
        (90, 8, r"give sizes that it takes \(h = 88\)"),
        (5, 5, "give other sizes"),
    ],
)
def test_nearest_sizes(h: int, w: int, taken: str) -> None:
    conditions = ["h % 4 == 0", "w == 4 * (w // 4)"]
    with pytest.raises(InputError, match=rf"input x: h = {h} where the model needs h % 4 == 0; {taken}"):
        check_conditions(conditions, [IMAGE], {"h": h, "w": w})


def test_sizes_of_several_names() -> None:
    with pytest.raises(InputError, match=r"\(h = 12, or w = 20\), or export the model anew"):
        check_conditions(["h + w == 26", "h % 2 == 0"], [IMAGE], {"h": 6, "w": 14})
