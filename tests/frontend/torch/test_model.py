"""Import of PyTorch models: the same numbers as torch, names, notes, and an error that says what is wrong."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

torch = pytest.importorskip("torch")
from torch import nn

from tests.frontend.compiled import Compiled, assert_same
from tests.zoo.nets.small import SMALL
from tvm_ext.errors import InputError, MissingPackageError, ModelError, UnsupportedOperatorError
from tvm_ext.frontend import TensorSpec, import_model
from tvm_ext.frontend.torch.model import import_torch

pytestmark = pytest.mark.torch

QUICK = {"c3d", "gpt2", "sentence_encoder"}
NETS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name) for name in SMALL]


def constants(mod: tvm.IRModule) -> list[np.ndarray]:
    found = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.GenericConst):
            found.append(node.value.numpy())

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize("name", NETS)
def test_module_gives_the_numbers_of_torch(name: str) -> None:
    small = SMALL[name]
    module = small.module()
    imported = import_torch(module, small.inputs(0))
    with torch.no_grad():
        expected = module(*small.inputs(1))
    assert_same(Compiled(imported.mod)(*small.inputs(1)), expected)
    assert len(imported.mod["main"].params) == len(imported.inputs) == len(small.inputs())
    assert imported.source == f"torch.nn.Module {type(module).__name__}"


class Affine(nn.Module):
    """Two tensors in, a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Any, *, scale: Any) -> dict[str, Any]:
        y = self.linear(x) * scale
        return {"result": y, "parts": [y + 1, (y, y - 1)]}


def test_keyword_inputs_and_nested_outputs_are_named() -> None:
    imported = import_torch(Affine(), {"x": torch.ones(2, 4), "scale": torch.ones(3, dtype=torch.float64)})
    assert imported.inputs == (TensorSpec("x", (2, 4), "float32"), TensorSpec("scale", (3,), "float64"))
    assert [spec.name for spec in imported.outputs] == ["result", "parts_0", "parts_1_0", "parts_1_1"]
    assert {spec.dtype for spec in imported.outputs} == {"float64"}


def test_input_names_replace_those_of_forward() -> None:
    imported = import_torch(nn.Linear(4, 3), [torch.ones(2, 4)], input_names=["input:0"])
    assert [spec.name for spec in imported.inputs] == ["input:0"]
    assert [spec.name for spec in imported.outputs] == ["output"]


@pytest.mark.parametrize(
    ("names", "found"), [(["a", "a"], "2 names, a more than once"), (["a"], "1 names"), (["a", "b", "c"], "3 names")]
)
def test_input_names_must_fit(names: list[str], found: str) -> None:
    class Sum(nn.Module):
        def forward(self, left: Any, right: Any) -> Any:
            return left + right

    message = rf"expected 2 different input names \(in place of left, right\), found {found}"
    with pytest.raises(InputError, match=message):
        import_torch(Sum(), (torch.ones(2), torch.ones(2)), input_names=names)


def test_symbolic_dimension_stays_and_runs_at_any_size() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.ones(2, 4),), dynamic_shapes=({0: batch},))
    imported = import_torch(program)
    (given_spec,), (output,) = imported.inputs, imported.outputs
    assert isinstance(given_spec.shape[0], str)
    assert given_spec.shape == (output.shape[0], 4)
    compiled = Compiled(imported.mod)
    for size in (1, 5, 31):
        x = torch.randn(size, 4)
        with torch.no_grad():
            assert_same(compiled(x), module(x))


def test_program_and_file_give_the_same_as_the_module(tmp_path: Path) -> None:
    small = SMALL["sentence_encoder"]
    module = small.module()
    program = torch.export.export(module, small.inputs())
    path = tmp_path / "encoder.pt2"
    torch.export.save(program, path)
    expected = import_torch(module, small.inputs())
    from_program, from_file = import_model(program), import_model(path)
    assert from_program.source == "torch.export.ExportedProgram"
    assert from_file.source == str(path)
    for imported in (from_program, from_file, import_model(module, example_inputs=small.inputs())):
        tvm.ir.assert_structural_equal(imported.mod, expected.mod)
        assert (imported.inputs, imported.outputs) == (expected.inputs, expected.outputs)


def test_weights_are_copied() -> None:
    module = nn.Linear(4, 3)
    imported = import_torch(module, (torch.ones(2, 4),))
    before = [value.copy() for value in constants(imported.mod)]
    with torch.no_grad():
        module.weight.fill_(7.0)
    assert len(before) == 2
    for ours, kept in zip(constants(imported.mod), before, strict=True):
        np.testing.assert_array_equal(ours, kept)


class OddConstants(nn.Module):
    """Weights of all the kinds that are not plain float matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed = nn.Parameter(torch.arange(12.0).reshape(3, 4).T)
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("rounded", torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16))
        self.register_buffer("scalar", torch.tensor(2.5))

    def forward(self, x: Any) -> Any:
        return torch.where(self.flags, x @ self.transposed, self.rounded.to(torch.float32)) * self.scalar


def test_constants_of_all_kinds() -> None:
    module, x = OddConstants(), torch.randn(2, 4)
    with torch.no_grad():
        expected = module(x)
    assert_same(Compiled(import_torch(module, (x,)).mod)(x), expected)


def test_training_mode_is_left_out_and_put_back() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4).eval())
    imported = import_torch(module, (torch.ones(2, 4),))
    assert imported.notes == ("exported in evaluation mode: dropout or batch normalisation was in training mode",)
    assert [part.training for part in module.modules()] == [True, True, True, False]
    assert import_torch(module.eval(), (torch.ones(2, 4),)).notes == ()


class Repeat(nn.Module):
    def forward(self, x: Any, times: int, flag: Any = None) -> Any:
        return torch.cat([x] * times) if flag is None else x


def test_argument_that_is_no_tensor_is_fixed() -> None:
    imported = import_torch(Repeat(), (torch.ones(2), 3))
    assert [spec.name for spec in imported.inputs] == ["x"]
    assert imported.outputs == (TensorSpec("output", (6,), "float32"),)
    assert imported.notes == ("fixed argument times at 3",)


def test_branches_are_imported() -> None:
    class Choose(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))

    compiled = Compiled(import_torch(Choose(), (torch.ones(4),)).mod)
    for x in (torch.ones(4), -torch.ones(4)):
        assert_same(compiled(x), x * 2 if x.sum() > 0 else x - 1)


# What cannot be imported


class DataDependent(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x


class Rare(nn.Module):
    def forward(self, x: Any) -> Any:
        waves = torch.special.airy_ai(x)
        return waves.abs() + torch.special.bessel_j0(x)


class RareInBranch(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: torch.special.bessel_j0(v), lambda v: v - 1, (x,))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return x + self.calls


class OverwritesInput(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mul_(2)


class ReturnsNone(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1, None


def test_control_flow_on_data_names_the_line() -> None:
    with pytest.raises(ModelError, match=r"Module DataDependent: torch.export cannot export it: ") as caught:
        import_torch(DataDependent(), (torch.ones(4),))
    assert f"{__file__}, line " in str(caught.value)
    assert "in forward: if x.sum() > 0:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_unsupported_operators_are_listed_with_their_lines() -> None:
    with pytest.raises(UnsupportedOperatorError, match="2 operators cannot be imported") as caught:
        import_torch(Rare(), (torch.ones(4),))
    message = str(caught.value)
    assert "aten.special_airy_ai.default 'special_airy_ai' (" in message
    assert "aten.special_bessel_j0.default" in message
    assert message.count(f"({__file__}, line ") == 2


def test_unsupported_operator_in_a_branch_is_found() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"1 operator cannot be imported: aten\.special_bessel_j0"):
        import_torch(RareInBranch(), (torch.ones(4),))


def test_operator_that_the_converter_refuses_is_named() -> None:
    class Strided(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.as_strided((x + 1).reshape(2, 2).T, (2,), (1,), 1)

    message = r"1 operator cannot be imported: aten\.as_strided\.default 'as_strided' \(.*, line \d+\): .*another order"
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_torch(Strided(), (torch.ones(4),))


def test_nothing_is_printed_where_nothing_can_stand_in(capfd: pytest.CaptureFixture[str]) -> None:
    class Means(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.native_layer_norm(x, [8], None, None, 1e-5)[1] * 2

    program = torch.export.export(Means(), (torch.randn(2, 4, 8),), dynamic_shapes=({0: torch.export.Dim("n")},))
    capfd.readouterr()
    refused = False
    try:
        import_model(program)
    except UnsupportedOperatorError:
        refused = True
    gc.collect()  # TVM complains of a builder that is left in the middle of something when it goes
    assert refused
    assert capfd.readouterr().err == ""


def test_operators_that_the_converters_refuse_are_listed_all(capfd: pytest.CaptureFixture[str]) -> None:
    class Two(nn.Module):
        def forward(self, x: Any) -> Any:
            return tuple(torch.as_strided(y.reshape(2, 2).T, (2,), (1,), 1) for y in (x + 1, x * 2))

    with pytest.raises(UnsupportedOperatorError, match=r"2 operators cannot be imported: .*as_strided.*as_strided"):
        import_torch(Two(), (torch.ones(4),))
    assert capfd.readouterr().err == ""


def test_dtype_that_tvm_lacks() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"Identity: .* is of complex numbers: it is an input"):
        import_torch(nn.Identity(), (torch.ones(2, dtype=torch.complex64),))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Counter(), r"Module Counter: it changes its buffer 'calls', and a compiled model keeps no state"),
        (OverwritesInput(), r"Module OverwritesInput: it changes its input 'x'"),
        (ReturnsNone(), r"Module ReturnsNone: one of its outputs is None, not a tensor"),
    ],
)
def test_what_is_no_function_of_tensors_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_torch(module, (torch.ones(4),))


def test_example_inputs_that_do_not_fit_are_to_blame() -> None:
    message = r"Linear: the module fails on the example inputs \(float32\[2, 5\]\): .*cannot be multiplied"
    with pytest.raises(InputError, match=message):
        import_torch(nn.Linear(4, 3), (torch.ones(2, 5),))


@pytest.mark.parametrize(
    ("example", "message"),
    [(None, "example inputs are needed"), (torch.ones(2, 4), "tuple or dictionary of tensors, found a Tensor")],
)
def test_example_inputs_must_be_given_as_a_tuple(example: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_torch(nn.Linear(4, 3), example)


def test_example_inputs_are_for_modules() -> None:
    program = torch.export.export(nn.Linear(4, 3), (torch.ones(2, 4),))
    with pytest.raises(InputError, match=r"example_inputs are for a torch\.nn\.Module"):
        import_torch(program, (torch.ones(2, 4),))


def test_something_else_is_refused() -> None:
    with pytest.raises(ModelError, match=r"builtins\.int is not a PyTorch model"):
        import_torch(3)  # type: ignore[arg-type]


def test_torch_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match="run: pip install torch"):
        import_torch("model.pt2")


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.pt2: there is no such file"):
        import_torch(tmp_path / "absent.pt2")
    with pytest.raises(ModelError, match="this is not a file"):
        import_torch(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "linear.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.ones(2, 4),)), path)
    return path.read_bytes()


def test_weights_saved_alone_are_not_a_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weights.pt2"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(ModelError, match=r"weights\.pt2: this is not an exported PyTorch program, or it is damaged"):
        import_torch(path)
    assert capfd.readouterr() == ("", "")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_file_never_ends_in_another_error(saved: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Cut short or with bytes changed, a file is refused in one line, or still means the same model."""
    content = bytearray(saved[: data.draw(st.integers(0, len(saved)))] if data.draw(st.booleans()) else saved)
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "damaged.pt2"
    path.write_bytes(content)
    try:
        imported = import_torch(path)
    except (ModelError, InputError) as error:
        message = str(error)
    else:
        message = str(imported.source)
    assert message.startswith(str(path))
    assert "\n" not in message


# torch.compile


def test_torch_own_backend_still_needs_relay() -> None:
    """The backend "tvm" that torch ships imports ``tvm.relay``, which TVM no longer has; options cannot change that."""
    compiled = torch.compile(nn.Linear(4, 3), backend="tvm", options={"pipeline": "tvm_ext"})
    with pytest.raises(Exception, match="install apache-tvm") as caught, torch.no_grad():
        compiled(torch.ones(2, 4))
    assert "'relay' from 'tvm'" in str(caught.value.inner_exception.__cause__)  # type: ignore[attr-defined]


def test_tvms_dynamo_backend_runs_the_pipeline() -> None:
    from tvm.relax.frontend.torch import relax_dynamo

    torch._dynamo.reset()
    small = SMALL["c3d"]
    module = small.module()
    compiled = torch.compile(module, backend=relax_dynamo(pipeline=relax.get_pipeline("tvm_ext")))
    with torch.no_grad():
        assert_same([compiled(*small.inputs()).numpy()], module(*small.inputs()))
