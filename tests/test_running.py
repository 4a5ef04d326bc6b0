"""One model run by many threads, by a forked child, and with inputs of every kind."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tests.modules import Branch, Dynamic, convolutions
from tests.processes import output_of
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.errors import InputError
from tvm_ext.inputs import aligned, random_inputs

THREADS = 8


@I.ir_module
class Passes:
    """Gives back its input, a view of it, twice the same sum, and a constant."""

    @R.function
    def main(x: R.Tensor((4, 16), "float32")):
        with R.dataflow():
            view = R.reshape(x, (16, 4))
            total = R.add(x, x)
            constant = R.const(np.arange(16, dtype="float32"), "float32")
            result = (x, view, total, total, constant)
            R.output(result)
        return result


def one_input(dtype: str, shape: tuple[int, ...] = (3, 5)) -> CompiledModel:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.concat([x, x], axis=0) if shape else relax.op.reshape(x, (1,)))
        builder.emit_func_output(result)
    return tvm_ext.compile(builder.finalize())


@pytest.mark.parametrize("mod", [Branch, convolutions(3)])
def test_threads_get_the_values_of_one(mod: Any) -> None:
    model = tvm_ext.compile(mod)
    given = [random_inputs(model.inputs, seed) for seed in range(THREADS)]
    alone = [model.run(arrays) for arrays in given]
    faults: list[str] = []

    def work(number: int) -> None:
        try:
            for step in range(60):
                which = (number + step) % THREADS
                for name, value in model.run(given[which]).items():
                    if not np.array_equal(value, alone[which][name]):
                        faults.append(f"thread {number}, step {step}: another {name}")
        except Exception as error:
            faults.append(repr(error))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert faults == []


def test_the_first_run_may_be_made_by_many_threads() -> None:
    model = tvm_ext.compile(convolutions(1))
    given = random_inputs(model.inputs)
    barrier, found = threading.Barrier(THREADS), []

    def work() -> None:
        barrier.wait()
        found.append((model.virtual_machine, model.run(given)["output"]))

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == THREADS
    assert len({id(machine) for machine, _ in found}) == 1
    assert all(np.array_equal(result, found[0][1]) for _, result in found)


def test_a_forked_child_runs_what_its_parent_ran() -> None:
    source = """
    import os
    import numpy as np
    import tvm_ext
    from tests.modules import convolutions
    from tvm_ext.inputs import random_inputs
    model = tvm_ext.compile(convolutions(2))
    given = random_inputs(model.inputs)
    before = model.run(given)["output"]
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(model.run(given)["output"], before) else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert output_of(source, TVM_NUM_THREADS="2").split() == ["0"]


def test_a_forked_child_does_not_wait_for_threads_it_has_not() -> None:
    """A thread that makes a virtual machine, or runs a model on VTA, while the process forks."""
    source = """
    import os, signal, threading
    import numpy as np
    import tvm_ext
    from tests.modules import convolutions
    from tvm_ext.inputs import random_inputs
    model = tvm_ext.compile(convolutions(2))
    held = threading.Event()
    def hold():
        with model._lock, model._turn:
            held.set()
            threading.Event().wait()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        model.run(random_inputs(model.inputs))
        with model._turn:
            os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
    """
    assert output_of(source, TVM_NUM_THREADS="2").split() == ["0"]


class TestOutputs:
    def test_they_share_memory_with_nothing(self) -> None:
        model = tvm_ext.compile(Passes)
        x = aligned(np.ones((4, 16), "float32"))
        names = [spec.name for spec in model.outputs]
        first = model.run([x])
        for name in names:
            first[name][...] = -7
        assert (x == 1).all()
        second = model.run([x])
        expected = [x, x.reshape(16, 4), x + x, x + x, np.arange(16, dtype="float32")]
        for name, value in zip(names, expected, strict=True):
            np.testing.assert_array_equal(second[name], value)
        values = list(second.values())
        assert not any(np.shares_memory(a, b) for i, a in enumerate(values) for b in values[:i])

    def test_the_next_run_leaves_them_alone(self) -> None:
        model = tvm_ext.compile(convolutions(2))
        given = [random_inputs(model.inputs, seed) for seed in (1, 2)]
        first = model.run(given[0])["output"]
        kept = first.copy()
        model.run(given[1])
        np.testing.assert_array_equal(first, kept)


class TestInputs:
    @pytest.mark.parametrize("memory", ["optimal", "arena"])
    def test_inputs_are_not_changed(self, memory: str) -> None:
        model = tvm_ext.compile(convolutions(3), memory=memory)
        given = {name: aligned(array) for name, array in random_inputs(model.inputs).items()}
        before = {name: array.copy() for name, array in given.items()}
        model.run(given)
        for name, array in given.items():
            np.testing.assert_array_equal(array, before[name])

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int64", "bool", "bfloat16"])
    def test_every_form_of_array(self, dtype: str) -> None:
        model = one_input(dtype)
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        values = (np.arange(15).reshape(3, 5) % 2).astype(kind)
        wide = np.zeros((6, 10), kind)
        wide[::2, ::2] = values
        read_only = aligned(values)
        read_only.flags.writeable = False
        misaligned = aligned(np.concatenate([values.ravel()[:1], values.ravel()]))[1:].reshape(3, 5)
        forms = {
            "contiguous": values,
            "aligned": aligned(values),
            "read-only": read_only,
            "strided": wide[::2, ::2],
            "reversed": values[::-1, ::-1].copy()[::-1, ::-1],
            "Fortran": np.asfortranarray(values),
            "misaligned": misaligned,
        }
        if dtype != "bfloat16":
            forms["other byte order"] = values.astype(kind.newbyteorder())
        for name, form in forms.items():
            (result,) = model.run([form]).values()
            np.testing.assert_array_equal(result, np.concatenate([values, values]), err_msg=name)

    def test_scalars_and_empty_arrays(self) -> None:
        scalar = one_input("float32", ())
        assert scalar.run([np.float32(2.5)])["output"].tolist() == [2.5]
        assert scalar.run([np.array(2.5, "float32")])["output"].tolist() == [2.5]
        empty = tvm_ext.compile(Dynamic)
        result = empty.run([np.zeros((0, 8), "float32"), np.ones((8, 4), "float32")])["output"]
        assert result.shape == (0, 4)

    def test_strides_of_axes_of_length_one(self) -> None:
        model = one_input("float32", (1, 5))
        rows = aligned(np.arange(20, dtype="float32").reshape(4, 5))
        for row in (rows[::4], rows[2:3], rows[:1].T.reshape(5, 1).T):
            np.testing.assert_array_equal(model.run([row])["output"], np.concatenate([row, row]))

    def test_tensors_of_tvm(self) -> None:
        values = np.arange(15, dtype="float32").reshape(3, 5)
        (result,) = one_input("float32").run([tvm.runtime.tensor(values)]).values()
        np.testing.assert_array_equal(result, np.concatenate([values, values]))

    def test_what_cannot_be_taken_is_explained(self) -> None:
        class Odd:
            def __dlpack__(self, **_: Any) -> Any:
                raise BufferError("it is out")

        model = one_input("float32")
        with pytest.raises(InputError, match=r"input x: float32\[3,5\].*Odd cannot be taken by DLPack: it is out"):
            model.run([Odd()])
        with pytest.raises(InputError, match="no array can be made of it"):
            model.run([[[1.0], [1.0, 2.0]]])

        class Broken:
            def __array__(self, *_: Any, **__: Any) -> Any:
                raise KeyError("gone")

        with pytest.raises(InputError, match="no array can be made of it: 'gone'"):
            model.run([Broken()])


class TestTorch:
    def test_its_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        x = torch.arange(15.0).reshape(3, 5)
        forms = [x, x.clone().requires_grad_(), x.t().contiguous().t(), torch.cat([torch.zeros(1), x.ravel()])[1:]]
        for form in forms:
            (result,) = one_input("float32").run([form.reshape(3, 5)]).values()
            np.testing.assert_array_equal(result, np.concatenate([x.numpy(), x.numpy()]))
        signed = torch.complex(x, x).conj().imag  # its sign is a flag of the tensor
        (result,) = one_input("float32").run([signed.reshape(3, 5)]).values()
        np.testing.assert_array_equal(result, np.concatenate([-x.numpy(), -x.numpy()]))
        (result,) = one_input("float32").run([torch._neg_view(x)]).values()
        np.testing.assert_array_equal(result, np.concatenate([-x.numpy(), -x.numpy()]))
        half = x.to(torch.bfloat16)
        for form in (half, half.t().contiguous().t()):
            (result,) = one_input("bfloat16").run([form]).values()
            np.testing.assert_array_equal(result.astype("float32"), np.concatenate([x.numpy(), x.numpy()]))
        with pytest.raises(InputError, match="found dtype float64"):
            one_input("float32").run([x.double()])
        with pytest.raises(InputError, match="unknown type_code"):
            one_input("float32").run([x.to(torch.complex64)])


def test_kernels_run_in_as_many_threads_as_they_may() -> None:
    source = """
    import os
    import threading
    import numpy as np
    import tvm
    from tests.modules import calling_threads
    from tvm_ext.system.threads import use_all_cores
    kernel = tvm.compile(calling_threads, tvm.target.Target("llvm"))
    counts = []
    def count():
        use_all_cores()
        found = tvm.runtime.tensor(np.zeros(64, "int64"))
        kernel(found)
        counts.append((len(set(found.numpy().tolist())), sorted(os.sched_getaffinity(0))))
    everything = sorted(os.sched_getaffinity(0))
    count()
    other = threading.Thread(target=count)
    other.start()
    other.join()
    os.sched_setaffinity(0, everything[-1:])
    other = threading.Thread(target=count)
    other.start()
    other.join()
    print(counts == [(THREADS, everything)] * 2 + [(THREADS, everything[-1:])], counts)
    """
    for count in (1, 2, 3):
        assert output_of(source.replace("THREADS", str(count)), TVM_NUM_THREADS=str(count)).startswith("True")


def test_the_process_is_left_as_it_was() -> None:
    source = """
    import locale, logging, os, signal, threading, warnings
    def environment():
        return {
            "variables": dict(os.environ),
            "affinity": sorted(os.sched_getaffinity(0)),
            "folder": os.getcwd(),
            "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
            "filters": list(warnings.filters),
            "locale": locale.setlocale(locale.LC_ALL),
            "logging": (logging.root.level, logging.root.handlers[:], logging.root.manager.disable),
            "mask": os.umask(0o022),
        }
    import numpy, onnx  # what they change is theirs
    import tvm
    errors = numpy.geterr()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before = environment()
    import tvm_ext
    from tests.modules import convolutions
    from tvm_ext.inputs import random_inputs
    steps = {"import": environment()}
    model = tvm_ext.compile(convolutions(1))
    steps["compile"] = environment()
    model.run(random_inputs(model.inputs))
    steps["run"] = environment()
    tvm.compile(convolutions(1), tvm.target.Target("llvm"), relax_pipeline="tvm_ext")
    steps["pipeline"] = environment()
    for step, after in steps.items():
        for key, value in after.items():
            if value != before[key]:
                print(step, key, before[key], value)
    print(numpy.geterr() == errors, len(os.listdir("/proc/self/task")) < 64)
    """
    for variables in ({}, {"TVM_NUM_THREADS": "2"}):
        found = output_of(source, **variables)
        assert found.rstrip("\n").split("\n")[-1] == "True True"
        assert "[" not in found


def test_a_run_imports_nothing() -> None:
    """An import holds a lock: a child forked meanwhile by another thread would wait for it without end."""
    source = """
    import sys
    import numpy as np
    import tvm_ext
    from tests.modules import convolutions
    model = tvm_ext.compile(convolutions(2))
    given = [np.zeros(spec.shape, spec.dtype) for spec in model.inputs]
    before = set(sys.modules)
    model.run(given)
    print(sorted(set(sys.modules) - before))
    """
    assert output_of(source) == "[]"
