from __future__ import annotations

import json

from tests.report.samples import small_inspection
from tvm_ext.graph import symbol


def test_json_holds_every_field_and_formulas_as_text():
    document = small_inspection(flops=4 * symbol("n") + 2).to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["kernels"][0]["flops"] == "4 * n + 2"
    assert document["kernels"][0]["operators"] == ["conv2d", "relu"]
    assert document["inputs"] == [["x", "float32[1, 3]"]]
    assert document["memory"][0]["profiles"][0]["live_at_peak"] == [["a", "float32[8]", 32]]
    assert set(document) == {
        *(
            "model target versions inputs outputs notes operator_uses flops unknown_flops constant_bytes planned_bytes"
        ).split(),
        *"operators kernels tensors memory phases layouts rewritings rewritten_flops".split(),
        *"resources profile embeddings".split(),
    }
