"""An input that a model looks something up with is refused where it is out of range."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import tvm_ext
from tvm_ext.errors import InputError, ModelError
from tvm_ext.frontend import import_model
from tvm_ext.inputs import random_inputs
from tvm_ext.passes.value_checks import without_value_checks

TABLE = np.arange(12, dtype="float32").reshape(4, 3)


def model_of(signature: str, body: str, *tables: tuple[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in tables)
    return model


def limits(model: object) -> list[tuple[int, int] | None]:
    return [spec.limits for spec in import_model(model).inputs]


LOOKUP = model_of("(int64[2,2] ids) => (float[2,2,3] z)", "z = Gather(table, ids)", ("table", TABLE))


def test_an_index_beyond_the_table_is_refused(tmp_path: Path) -> None:
    model = tvm_ext.compile(LOOKUP, "native")
    model.save(tmp_path / "model")
    for compiled in (model, tvm_ext.load(tmp_path / "model")):
        (found,) = compiled.run([np.array([[0, 3], [-1, -4]])]).values()
        np.testing.assert_array_equal(found, TABLE[[[0, 3], [-1, -4]]])
        for outside in (4, -5, 2**32):
            with pytest.raises(InputError, match=rf"input ids.*{outside} at \[1, 0\].*-4 to 3"):
                compiled.run([np.array([[0, 1], [outside, 1]])])


@pytest.mark.parametrize(
    ("signature", "body", "expected"),
    [
        ("(int64[4] i) => (float[2,2,3] z)", "a = Cast<to = 6>(i) b = Reshape(a, two) z = Gather(table, b)", (-4, 3)),
        ("(int64[4] i) => (float[4,3] z, float[4] w)", "z = Gather(table, i) w = Gather(row, i)", (-3, 2)),
        ("(int64[4] i) => (float[4,4] z)", "z = Gather<axis = 1>(table, i)", (-3, 2)),
        ("(int32[4] i, float[9,2] t) => (float[4,2] z)", "z = Gather(t, i)", (-9, 8)),
        ("(int64[4,3] i) => (float[4,3] z)", "z = GatherElements<axis = 1>(table, i)", (-3, 2)),
        ("(int64[2,3] i) => (float[4,3] z)", "z = ScatterElements<axis = 0>(table, i, some)", (-4, 3)),
        ("(uint8[4] i) => (float[4,3] z)", "a = Cast<to = 7>(i) z = Gather(table, a)", (-4, 3)),
        ("(int64[4] i) => (float[4,3] z)", "a = Cast<to = 2>(i) b = Cast<to = 7>(a) z = Gather(table, b)", None),
        # Values that are computed are the model's own affair.
        ("(int64[4] i) => (float[4,3] z)", "a = Add(i, i) z = Gather(table, a)", None),
        ("(int64[4] i) => (float[4,3] z)", "a = Max(i, i) z = Gather(table, a)", None),
        # So is what may never happen.
        (
            "(int64[4] i, bool c) => (float[4,3] z)",
            "z = If(c) <then_branch = t () => (float[4,3] u) { u = Gather(table, i) }, "
            "else_branch = e () => (float[4,3] v) { v = Expand(row, shape) }>",
            None,
        ),
        ("(float[4] i) => (float[4] z)", "z = Relu(i)", None),
    ],
)  # fmt: skip
def test_what_is_followed(signature: str, body: str, expected: tuple[int, int] | None) -> None:
    constants = {
        "table": TABLE, "row": TABLE[0], "two": np.array([2, 2]), "shape": np.array([4, 3]), "some": TABLE[:2],
    }  # fmt: skip
    model = model_of(signature, body, *((name, array) for name, array in constants.items() if name in body))
    assert limits(model)[0] == expected


def recurrent(lengths: str, steps: int = 3, direction: str = "forward") -> onnx.ModelProto:
    """An RNN over two sequences whose lengths are an input, or computed from one."""
    random = np.random.default_rng(0)
    directions = 2 if direction == "bidirectional" else 1
    weights = {name: random.standard_normal((directions, 4, n)).astype("float32") for name, n in (("W", 5), ("R", 4))}
    weights["two"] = np.array(2, "int32")
    body = f'{lengths} Y, Y_h = RNN<hidden_size = 4, direction = "{direction}">(X, W, R, , lengths)'
    outputs = f"(float[{steps},{directions},2,4] Y, float[{directions},2,4] Y_h)"
    return model_of(f"(float[{steps},2,5] X, int32[2] given) => {outputs}", body, *weights.items())


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths_of_sequences_are_no_more_than_the_steps(direction: str, tmp_path: Path) -> None:
    model = recurrent("lengths = Identity(given)", direction=direction)
    assert limits(model) == [None, (0, 3)]
    tvm_ext.compile(model, "native").save(tmp_path / "model")
    compiled = tvm_ext.load(tmp_path / "model")
    x = np.random.default_rng(1).standard_normal((3, 2, 5)).astype("float32")
    for length in (0, 1, 3):
        compiled.run([x, np.array([3, length], "int32")])
    for length in (4, -1, 2**31 - 1):
        with pytest.raises(
            InputError, match=rf"input given.*found {length} at \[1\].*lengths; give integers from 0 to 3"
        ):
            compiled.run([x, np.array([3, length], "int32")])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_computed_lengths_beyond_the_steps_read_and_write_nothing_foreign(direction: str) -> None:
    model = recurrent("lengths = Mul(given, two)", direction=direction)
    assert limits(model)[1] is None
    compiled = tvm_ext.compile(model, "native")
    x = np.random.default_rng(1).standard_normal((3, 2, 5)).astype("float32")
    with pytest.raises(InputError, match="must hold lengths from 0 to dimension 0 of 'X', which is 3"):
        compiled.run([x, np.array([9**8, 2], "int32")])
    compiled = tvm_ext.compile(without_value_checks()(import_model(model).mod), "native")  # as where none can refuse
    wanted = compiled.run([x, np.array([1, 0], "int32")])
    short = tvm_ext.compile(recurrent("lengths = Identity(given)", direction=direction), "native")
    for ours, theirs in zip(wanted.values(), short.run([x, np.array([2, 0], "int32")]).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    whole = short.run([x, np.array([3, 3], "int32")])
    for ours, theirs in zip(compiled.run([x, np.array([9**8, 2], "int32")]).values(), whole.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_table_of_one_row_takes_made_up_inputs() -> None:
    model = model_of("(int64[5] ids) => (float[5,3] z)", "z = Gather(table, ids)", ("table", TABLE[:1]))
    compiled = tvm_ext.compile(model, "native")
    (found,) = compiled.run(random_inputs(compiled.inputs)).values()
    np.testing.assert_array_equal(found, np.repeat(TABLE[:1], 5, 0))


def test_an_embedding_of_torch_counts_from_the_start_only() -> None:
    torch = pytest.importorskip("torch")

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(7, 3)

        def forward(self, ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.table(ids), self.table.weight[rows]

    ids = torch.zeros(4, dtype=torch.int64)
    program = torch.export.export(Both(), (ids, ids.clone()))
    assert limits(program) == [(0, 6), (-7, 6)]
    compiled = tvm_ext.compile(program, "native")
    with pytest.raises(InputError, match=r"-1 at \[3\]"):
        compiled.run([torch.tensor([0, 1, 6, -1]), ids])
    compiled.run([ids, torch.tensor([0, 1, 6, -7])])


def test_writes_of_torch_beyond_the_end_are_refused() -> None:
    """A cache of keys that is full."""
    torch = pytest.importorskip("torch")

    class Cache(torch.nn.Module):
        def forward(self, cache: torch.Tensor, place: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            return cache.index_copy(0, place, new)

    program = torch.export.export(Cache(), (torch.zeros(5, 2), torch.tensor([3]), torch.ones(1, 2)))
    compiled = tvm_ext.compile(program, "native")
    (found,) = compiled.run([np.zeros((5, 2), "float32"), np.array([4]), np.ones((1, 2), "float32")]).values()
    np.testing.assert_array_equal(found.sum(1), [0, 0, 0, 0, 2])
    with pytest.raises(InputError, match="found 5 at"):
        compiled.run([np.zeros((5, 2), "float32"), np.array([5]), np.ones((1, 2), "float32")])


def test_metadata_with_damaged_limits_is_refused(tmp_path: Path) -> None:
    tvm_ext.compile(LOOKUP, "native").save(tmp_path / "model")
    path = tmp_path / "model" / "metadata.json"
    text = path.read_text()
    for damaged in ('"limits": 3', '"limits": [1]', '"limits": [true, 3]', '"limits": ["a", 3]'):
        path.write_text(re.sub(r'"limits": \[[^\]]*\]', damaged, text))
        with pytest.raises(ModelError, match=r"inputs\[0\].limits"):
            tvm_ext.load(tmp_path / "model")
