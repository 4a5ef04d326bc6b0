"""Extents that an exported program was not made for are refused, by what is in memory and by what was saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch.export import Dim
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tests.commands import Commands
from tvm_ext.artifact.compiled_model import METADATA, load
from tvm_ext.conditions import names_of
from tvm_ext.errors import InputError, ModelError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.torch.guards import require_bound
from tvm_ext.tensor_spec import TensorSpec


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Pairs(torch.nn.Module):
    """Torch traces it for an even number of rows; of an odd number the last would be left out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // 2, 2, 3).sum(1)


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor, ys: list[Any]) -> torch.Tensor:
        return x[:-1] + ys[0] + ys[1]["a"]


def rows(count: int) -> np.ndarray:
    return np.arange(count * 3, dtype="float32").reshape(count, 3)


def exported(module: torch.nn.Module, *arguments: Any, shapes: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module, arguments, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = exported(Double(), torch.ones(4, 3), shapes=({0: Dim("n", min=3, max=8)},))
    return tvm_ext.compile(program).save(tmp_path_factory.mktemp("artifact") / "double")


class TestRanges:
    @pytest.mark.parametrize("count", [3, 4, 7, 8])
    def test_inside(self, double: Path, count: int) -> None:
        np.testing.assert_array_equal(load(double).run([rows(count)])["output"], rows(count) * 2)

    @pytest.mark.parametrize("count", [0, 1, 2, 9, 127])
    def test_outside(self, double: Path, count: int) -> None:
        compiled = load(double)
        message = rf"input x: float32\[\w+,3\]: dimension 0 is {count}, and the model is made for 3 to 8; give one of"
        for given in (rows(count), torch.ones(count, 3)):
            with pytest.raises(InputError, match=message):
                compiled.run([given])

    def test_on_the_command_line(self, double: Path, tmp_path: Path, commands: Commands) -> None:
        np.save(tmp_path / "x.npy", rows(9))
        refused = commands("run", double, "--input", tmp_path / "x.npy")
        refused.error(InputError.exit_code, "dimension 0 is 9, and the model is made for 3 to 8")
        drawn = commands("run", double, "--json")  # random inputs are inside
        assert json.loads(drawn.stdout)["outputs"][0]["shape"] == [3, 3]

    @pytest.mark.parametrize(
        "change",
        [
            lambda data: data["inputs"][0].update(ranges=[[3, 8]]),
            lambda data: data["inputs"][0].update(ranges=[["2", 8], None]),
            lambda data: data["inputs"][0].update(ranges=[[2], None]),
            lambda data: data["inputs"][0].update(ranges=[[2, True], None]),
            lambda data: data["inputs"][0].update(ranges={"a": 1}),
            lambda data: data.update(conditions=["other == 1"]),
            lambda data: data.update(conditions=["__import__('os')"]),
            lambda data: data.update(conditions=[1]),
            lambda data: data.update(conditions="n == 1"),
        ],
    )
    def test_damage(self, double: Path, tmp_path: Path, change: Any) -> None:
        copied = load(double).save(tmp_path / "copied")
        data = json.loads((copied / METADATA).read_text())
        change(data)
        (copied / METADATA).write_text(json.dumps(data))
        with pytest.raises(ModelError, match=r"is damaged, field (inputs\[0\].ranges|conditions).*; compile the model"):
            load(copied)

    def test_of_a_module_of_relax(self) -> None:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n", 3), "float32"), y: R.Tensor(("n + 1", 3), "float32")):
                R.func_attr({"tir_var_upper_bound": {"n": 5}})
                with R.dataflow():
                    total = R.sum(x, axis=[1])
                    other = R.sum(y, axis=[1])
                    R.output(total, other)
                return (total, other)

        compiled = tvm_ext.compile(Module)
        assert [spec.ranges for spec in compiled.inputs] == [((0, 5), None), ((1, 6), None)]
        np.testing.assert_array_equal(compiled.run([rows(5), rows(6)])["output_0"], rows(5).sum(1))
        with pytest.raises(InputError, match="dimension 0 is 6, and the model is made for 0 to 5"):
            compiled.run([rows(6), rows(7)])

    def test_no_range_where_none_is_declared(self) -> None:
        program = exported(Double(), torch.ones(4, 3), shapes=({0: Dim("n")},))
        assert import_model(program).inputs[0].ranges == ()

    def test_dynamic_extents_may_be_zero_and_one(self) -> None:
        """Torch traces them as 2 or more, and does not check that."""
        compiled = tvm_ext.compile(exported(Double(), torch.ones(4, 3), shapes=({0: Dim.DYNAMIC},)))
        for count in (0, 1, 5):
            np.testing.assert_array_equal(compiled.run([rows(count)])["output"], rows(count) * 2)


class TestConditions:
    def test_an_odd_number_of_rows(self, tmp_path: Path) -> None:
        torch.export.save(exported(Pairs(), torch.ones(8, 3), shapes=({0: Dim.AUTO},)), tmp_path / "pairs.pt2")
        compiled = load(tvm_ext.compile(tmp_path / "pairs.pt2").save(tmp_path / "pairs"))
        for count in (4, 8, 34):
            expected = rows(count).reshape(-1, 2, 3).sum(1)
            np.testing.assert_array_equal(compiled.run([rows(count)])["output"], expected)
        with pytest.raises(InputError, match=r"input x: \w+ = 9 where the model needs 3"):
            compiled.run([rows(9)])
        with pytest.raises(InputError):
            compiled.run([rows(1)])  # where a condition divides by zero

    def test_computed_extents_and_nested_arguments(self) -> None:
        shapes = ({0: Dim.AUTO}, [{0: Dim.AUTO}, {"a": {0: Dim.AUTO}}])
        program = exported(Nested(), torch.ones(5, 3), [torch.ones(4, 3), {"a": torch.ones(4, 3)}], shapes=shapes)
        compiled = tvm_ext.compile(program)
        given = [rows(8), rows(7), rows(7)]
        np.testing.assert_array_equal(compiled.run(given)["output"], rows(8)[:-1] + 2 * rows(7))
        with pytest.raises(InputError, match=r"input x: dimension 0 must be \w+ \+ 1, which is 8 by the other inputs"):
            compiled.run([rows(7), rows(7), rows(7)])
        with pytest.raises(InputError, match=r"ys_1_a.* dimension 0 must be 7, found"):
            compiled.run([rows(8), rows(7), rows(6)])

    def test_an_extent_whose_symbols_are_nowhere(self) -> None:
        inputs = (TensorSpec("y", (3, "4 * c + 1"), "float32"), TensorSpec("x", ("2 * a + b", "c"), "float32"))
        require_bound(inputs[:1], "m.pt2")
        with pytest.raises(ModelError, match=r"axis 0 of input 'x' is 2 \* a \+ b, and no input has the extent a, b"):
            require_bound(inputs, "m.pt2")

    @pytest.mark.parametrize(
        "text",
        ["f(n)", "n.real", "n[0]", "2**n", "'a' == n", "n == True", "n if n else 1", "(" * 3000, "n ==", "5."],
    )
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"^(it |\w+ is no part of a condition)"):
            names_of(text)


class Classes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x, 5)


def test_values_that_a_model_refuses_itself() -> None:
    compiled = tvm_ext.compile(Classes(), example_inputs=(torch.tensor([0, 1, 4]),))
    for values, reason in (([0, 5, 1], "must be smaller than num_classes"), ([0, -1, 1], "must be non-negative")):
        with pytest.raises(
            InputError, match=f"the model itself refuses its inputs: one_hot: Class values {reason}; give"
        ):
            compiled.run([np.array(values)])
        np.testing.assert_array_equal(compiled.run([np.array([4, 0, 2])])["output"], np.eye(5)[[4, 0, 2]])


class Half(torch.nn.Module):
    """Torch cuts a float that it computes of an extent to an integer, and fixes what comes out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: int(x.shape[0] * 0.7)] * 2


def test_conditions_on_floats() -> None:
    program = exported(Half(), torch.ones(9, 3), shapes=({0: Dim.AUTO},))
    (guard,) = (text for text in program._guards_code if "trunc" in text)
    imported = import_model(program)
    (condition,) = (text for text in imported.conditions if "trunc" in text)
    assert not imported.notes
    compiled = tvm_ext.compile(program)
    for count in range(6, 40):
        if eval(condition, {"trunc": int, "x_0": count}):
            np.testing.assert_array_equal(compiled.run([rows(count)])["output"], rows(count)[: int(count * 0.7)] * 2)
        else:
            assert int(count * 0.7) != 6
            with pytest.raises(InputError, match=r"the model needs trunc\("):
                compiled.run([rows(count)])
    assert int(10 * 0.7) == 7  # where no double is 7 / 10
    assert "0.7" in guard


def test_tvm_names_its_attributes_as_we_read_them() -> None:
    program = exported(Double(), torch.ones(4, 3), shapes=({0: Dim("n", min=3, max=6)},))
    mod = import_model(program).mod
    assert isinstance(mod, tvm.IRModule)
    assert list(mod["main"].attrs["tir_var_upper_bound"].values()) == [6]
    assert list(mod["main"].attrs["tir_var_lower_bound"].values()) == [3]


class _Chosen(torch.nn.Module):
    """The three boxes of the highest scores, and elements at places that count from the end, too."""

    def forward(
        self, boxes: torch.Tensor, scores: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        best = torch.topk(scores, 3, 1).indices
        chosen = torch.gather(boxes, 1, best[..., None].expand(-1, -1, 4))
        return chosen, boxes[:, rows], boxes[rows % boxes.shape[0], rows]


def test_places_along_open_dimensions() -> None:
    count, places = torch.export.Dim("count", min=3, max=200), torch.export.Dim("places", min=2, max=50)
    batch = torch.export.Dim("batch", min=2, max=9)

    def arguments(images: int, boxes: int, rows: int) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(boxes)
        places = torch.randint(-boxes, boxes, (rows,))
        return torch.randn(images, boxes, 4), torch.randn(images, boxes), places

    open_dims = ({0: batch, 1: count}, {0: batch, 1: count}, {0: places})
    program = torch.export.export(_Chosen(), arguments(2, 7, 5), dynamic_shapes=open_dims)
    compiled = tvm_ext.compile(program)
    for sizes in ((2, 3, 2), (3, 7, 17), (9, 127, 33), (4, 200, 50)):
        given = arguments(*sizes)
        for want, got in zip(_Chosen()(*given), compiled.run(given).values(), strict=True):
            np.testing.assert_array_equal(got, want.numpy())
