"""The table of converters."""

from __future__ import annotations

from collections import Counter

from tvm_ext.frontend.onnx import converters


def test_an_operator_has_one_converter() -> None:
    claims = Counter(key for family in converters._FAMILIES for key in family.CONVERTERS)
    assert [key for key, count in claims.items() if count > 1] == []
    assert set(claims) == set(converters.CONVERTERS)
