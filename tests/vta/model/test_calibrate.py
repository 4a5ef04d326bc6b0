"""What calibration data may be: as many samples for each input, of its shape and type, that say something."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tvm_ext.backends.vta.model.calibrate import check_samples
from tvm_ext.errors import InputError, TvmExtWarning

PARAMETERS = [("x", (1, 3), "float32"), ("n", (2,), "int32")]
X, N = np.ones((4, 3), "float32"), np.zeros((4, 2), "int32")


def test_samples_may_lie_along_a_new_axis_or_the_first() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = check_samples(PARAMETERS, {"x": X, "n": N})
    assert [(sample["x"].shape, sample["n"].shape) for sample in samples] == [((1, 3), (2,))] * 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": X}, r"nothing for input 'n'; give an array int32\[2\]"),
        ({"x": X, "n": N, "y": X}, "names the input 'y'; the model has x, n"),
        ({"x": X[:0].reshape(0, 1, 3), "n": N}, "input 'x' holds no sample"),
        ({"x": X * np.nan, "n": N}, "input 'x' has values that are not finite"),
        ({"x": X.astype("float64"), "n": N}, "input 'x' is float64; expected float32"),
        ({"x": X[:, :2], "n": N}, r"input 'x' has the shape \[4, 2\]; expected \[1, 3\], or several"),
        ({"x": X[:2], "n": N}, r"other numbers of samples for the inputs \(x: 2, n: 4\)"),
    ],
)
def test_what_does_not_fit_names_the_input(data: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_samples(PARAMETERS, data)


def test_zeros_are_warned_of() -> None:
    """A placeholder: the model would be quantised for zeros, and give nonsense for everything else."""
    with pytest.warns(TvmExtWarning, match="input 'x' is zero everywhere"):
        check_samples(PARAMETERS, {"x": X * 0, "n": N})
