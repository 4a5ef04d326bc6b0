"""What cannot be compiled runs in PyTorch, with one warning that names it; or is an error."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
import tvm
from torch import Tensor, nn, randn
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.processes import output_of
from tests.torch_compile.eager import LENIENT, STRICT, assert_like_eager, assert_same, compiled, one_warning
from tvm_ext.errors import InputError, OptionError
from tvm_ext.torch_compile import graph
from tvm_ext.torch_compile.beside_torch import target_beside_torch
from tvm_ext.torch_compile.options import BackendOptions

pytestmark = pytest.mark.torch


def factors(x: Tensor) -> Tensor:
    return torch.linalg.qr(x).R


class Between(nn.Module):
    """An operator that cannot be compiled between two that can."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.before(x))
        return self.after(torch.linalg.qr(y).R) + 1, y


def test_a_whole_graph() -> None:
    with one_warning("linalg_qr.default 'linalg_qr' ("):
        assert_like_eager(factors, (randn(4, 4),), (randn(5, 5),), options={})


def test_the_parts_around_it_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = graph.compile_model

    def compile_model(*arguments: Any, **options: Any) -> Any:
        made.append(original(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(graph, "compile_model", compile_model)
    net = Between().eval()
    with one_warning("the rest of it is compiled in parts"):
        run = assert_like_eager(net, (randn(8, 8),), options=LENIENT, rtol=1e-3, atol=1e-4)
    assert len(made) == 2
    cores = [part.metadata["target"]["num-cores"] for part in made]
    assert cores == [1, 1]  # threads of PyTorch may still spin on the others
    net.after.weight.data.mul_(2)
    x = randn(8, 8)
    with torch.no_grad():
        assert_same(run(x), net(x), rtol=1e-3, atol=1e-4)


def test_a_part_that_cannot_be_compiled_either_gives_its_whole_tensor() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        # The converter of the first refuses integers, which only shows in the part beside the product.
        return torch.nn.functional.avg_pool2d(x, 2, divisor_override=3), y @ y.t(), torch.linalg.qr(y).R

    with one_warning("convert them to floats"):
        arguments = torch.arange(24).reshape(1, 4, 6), randn(4, 4)
        assert_like_eager(run, arguments, options=LENIENT, rtol=1e-4, atol=1e-5)


def test_parts_with_open_extents() -> None:
    net = Between().eval()
    calls = [(randn(number, 8),) for number in (9, 12, 17)]
    assert_like_eager(net, *calls, options=LENIENT, dynamic=True, rtol=1e-3, atol=1e-4)


def test_as_an_error() -> None:
    with pytest.raises(BackendCompilerFailed, match=r"linalg_qr.*there is no converter for it"):
        compiled(factors, STRICT)(randn(4, 4))


def test_graph_breaks() -> None:
    net = nn.Linear(4, 4).eval()

    def run(x: Tensor) -> Tensor:
        y = net(x)
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return net(y) * y.sum().item()
        return net(-y)

    assert_like_eager(run, *[(randn(2, 4),) for _ in range(4)])


def test_an_empty_result_takes_the_result_of_another_operator() -> None:
    def run(x: Tensor) -> Tensor:
        y = torch.empty(0)
        torch.add(x @ x, 1, out=y)  # PyTorch breaks the graph here, and resizes y
        return y

    assert_like_eager(run, (randn(4, 4),), rtol=1e-4, atol=1e-5)


UNUSUAL: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "sparse": (lambda x, y: x @ y, lambda: (torch.eye(3).to_sparse(), randn(3, 3))),
    "complex": (lambda x: (torch.fft.fft(x).abs(), x * 1j), lambda: (randn(8),)),
    "shape_of_values": (lambda x: (x.nonzero(), x[x > 0].sum()), lambda: (randn(5),)),
    "random": (lambda x: x * 0 + torch.zeros(3).bernoulli_(1.0), lambda: (randn(3),)),
    "strided": (lambda x: x.as_strided((2, 2), (1, 2)) * 2, lambda: (randn(4),)),
    "recurrent": (nn.LSTM(4, 5).eval(), lambda: (randn(3, 2, 4),)),
    "unique": (lambda x: torch.unique(x), lambda: (torch.tensor([3, 1, 3]),)),
    "meta": (lambda x: x * 2, lambda: (torch.empty(3, device="meta"),)),
    "strings": (lambda x, how: x.sum() if how == "sum" else x.mean(), lambda: (randn(3), "mean")),
}


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual(name: str) -> None:
    function, draw = UNUSUAL[name]
    given = draw()
    with torch.no_grad():
        found, expected = compiled(function, LENIENT)(*given), function(*given)
    if name == "meta":
        assert found.is_meta
    else:
        assert_same(found, expected, rtol=1e-4, atol=1e-5)


def test_nested_tensors() -> None:
    net = nn.Linear(4, 4).eval()
    given = torch.nested.nested_tensor([randn(2, 4), randn(3, 4)], layout=torch.jagged)
    with torch.no_grad():
        assert_same(compiled(net, LENIENT)(given).values(), net(given).values())


def test_an_index_out_of_range_is_the_error_of_torch() -> None:
    table = nn.Embedding(10, 4).eval()
    run = compiled(table, LENIENT)
    with torch.no_grad():
        assert_same(run(torch.tensor([1, 9])), table(torch.tensor([1, 9])))
        with pytest.raises(IndexError, match="index out of range"):
            run(torch.tensor([1, 10]))
    torch._dynamo.reset()
    with pytest.raises(InputError, match="10"), torch.no_grad():
        compiled(table, STRICT)(torch.tensor([1, 10]))


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"memori": "optimal"}, "unknown option 'memori' of backend tvm_ext; did you mean 'memory'"),
            ({"zzz": 1}, "unknown option 'zzz' of backend tvm_ext; options are fallback, weights, target, disable"),
            ({"memory": "x"}, "option memory: unknown value 'x', candidates are stock, arena, optimal"),
            ({"weights": "packed"}, "option weights: unknown value 'packed', candidates are constant, argument"),
            ({"weights": "arguments"}, r"constant, argument; did you mean argument\?"),
            ({"fallback": 2}, "option fallback: 2 is neither True nor False"),
            ({"target": "nope"}, "unknown target 'nope'"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(BackendCompilerFailed, match=message):
            compiled(lambda x: x + 1, options)(randn(2))

    def test_modes_are_of_another_backend(self) -> None:
        with pytest.raises(BackendCompilerFailed, match="mode='max-autotune' is for inductor"):
            torch.compile(lambda x: x + 1, backend="tvm_ext", mode="max-autotune")(randn(2))

    def test_default_mode(self) -> None:
        assert BackendOptions.parse(None, "default") == BackendOptions()
        with pytest.raises(OptionError):
            BackendOptions.parse({}, "reduce-overhead")


def test_torch_finds_the_backend_and_imports_nothing_early() -> None:
    source = """
        import sys
        from importlib.metadata import entry_points
        (point,) = entry_points(group="torch_dynamo_backends", name="tvm_ext")
        backend = point.load()
        print(callable(backend), "torch" in sys.modules, "tvm" in sys.modules)
        import torch._dynamo
        print("tvm_ext" in torch._dynamo.list_backends(), torch._dynamo.lookup_backend("tvm_ext") is backend)
    """
    assert output_of(source).split() == ["True", "False", "False", "True", "True"]


def test_no_warning_where_all_is_compiled() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_like_eager(nn.Linear(4, 4).eval(), (randn(2, 4),))


@pytest.mark.parametrize(("rows", "cores"), [(64, 1), (40_000, 2)])
def test_only_long_parts_take_all_cores(rows: int, cores: int) -> None:
    machine = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    with FakeTensorMode():
        part = make_fx(lambda x, y: torch.ops.aten.mm(x, y).relu())(randn(rows, 256), randn(256, 256))
    assert target_beside_torch(part, machine).attrs["num-cores"] == cores


def test_parts_of_open_extents_keep_all_cores() -> None:
    machine = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    part = make_fx(lambda x, y: torch.ops.aten.mm(x, y), tracing_mode="symbolic")(randn(3, 5), randn(5, 7))
    assert target_beside_torch(part, machine).attrs["num-cores"] == 2
