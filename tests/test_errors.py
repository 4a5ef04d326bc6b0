"""Names that are none of those there are: the message names the nearest."""

from __future__ import annotations

import pytest

from tvm_ext.bench.contender import Contender
from tvm_ext.errors import OptionError
from tvm_ext.options import PipelineOptions
from tvm_ext.tuners.recipes import recipe


def test_the_nearest_name_is_named() -> None:
    with pytest.raises(OptionError, match=r"unknown tuner 'chamelon', candidates are .*; did you mean chameleon\?"):
        recipe("chamelon")
    with pytest.raises(
        OptionError, match=r"unknown engine 'onnxruntme', candidates are .*; did you mean onnxruntime\?"
    ):
        Contender("onnxruntme")
    with pytest.raises(
        OptionError, match=r"option rewrite: unknown value 'fats', .* off, strict, fast; .* mean fast\?"
    ):
        PipelineOptions(rewrite="fats")
    with pytest.raises(OptionError, match=r"option memory: unknown value 'ram', candidates are stock, arena, optimal$"):
        PipelineOptions(memory="ram")
