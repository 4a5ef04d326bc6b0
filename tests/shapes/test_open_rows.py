"""What is made of products and reductions of rows takes any number of images at once, and computes the same."""

import pytest

import tvm_ext
from tests.shapes.batch_models import QUICK, TAKEN, assert_right, models
from tvm_ext.shapes.open_batch import OVER_BATCH, open_batch

ROWS = sorted({*TAKEN, *QUICK} - {"conv_net"})


@pytest.mark.parametrize("name", ROWS)
def test_equals_stock_tvm(name: str) -> None:
    assert_right(tvm_ext.compile(models()[name]).executable, name)


@pytest.mark.parametrize("name", ["attention_block", "from_constant", "products"])
def test_rows_are_not_looped_over(name: str) -> None:
    assert OVER_BATCH not in open_batch()(models()[name])["main"].script()


def test_convolutions_are() -> None:
    assert OVER_BATCH in open_batch()(models()["conv_net"])["main"].script()
