from __future__ import annotations

import json
import statistics

import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.modules import Mlp
from tests.processes import output_of
from tvm_ext import errors
from tvm_ext.registration import register


def test_importing_tvm_registers_a_pipeline_that_compiles() -> None:
    source = """
        import numpy as np
        import tvm
        from tvm import relax
        x = relax.Var("x", relax.TensorType((2, 3), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.add(x, x)))
        executable = tvm.compile(builder.get(), "llvm", relax_pipeline="tvm_ext")
        result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(np.full((2, 3), 4, "float32")))
        print(result.numpy().sum())
    """
    assert output_of(source) == "48.0"


def test_importing_tvm_ext_registers_where_tvm_does_not_load_its_backends() -> None:
    source = """
        import sys
        import tvm_ext, tvm
        pipelines = tvm.relax.pipeline.PIPELINE_MAP
        print(pipelines.pop("tvm_ext", None) is not None)
        for name in [name for name in sys.modules if name.split(".")[0] == "tvm_ext"]:
            del sys.modules[name]
        import tvm_ext  # this time TVM is there already
        print("tvm_ext" in pipelines)
    """
    assert output_of(source, TVM_DEVICE_BACKEND_AUTOLOAD="0").split() == ["True", "True"]


def test_registering_again_changes_nothing() -> None:
    before = dict(relax.pipeline.PIPELINE_MAP)
    register()
    register()
    assert relax.pipeline.PIPELINE_MAP == before


def test_errors_keep_their_class_when_they_pass_through_cpp() -> None:
    own = (errors.TvmExtError, errors.TvmExtWarning)
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, own)]
    assert errors.OutputError in classes
    for error in (*(cls("a sentence") for cls in classes), KeyboardInterrupt()):

        @tvm.transform.module_pass(opt_level=0)
        def fail(mod: tvm.IRModule, context: tvm.transform.PassContext, error: BaseException = error) -> tvm.IRModule:
            raise error

        with pytest.raises(type(error)) as caught:
            tvm.transform.Sequential([fail])(Mlp)
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)


def test_importing_tvm_ext_is_quick_and_imports_nothing_heavy() -> None:
    source = """
        import json, sys, time
        import tvm
        ours = lambda: [name for name in sys.modules if name.split(".")[0] == "tvm_ext"]
        before = set(sys.modules)
        seconds = []
        for _ in range(5):
            for name in ours():
                del sys.modules[name]
            start = time.process_time()
            import tvm_ext
            seconds.append(time.process_time() - start)
        print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
    """
    seconds, added = json.loads(output_of(source))
    assert statistics.median(seconds) < 0.1, seconds
    assert not {name.split(".")[0] for name in added} - {"tvm_ext"}, added


def test_importing_tvm_ext_alone_does_not_import_tvm() -> None:
    assert output_of("import sys, tvm_ext; print('tvm' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_tuners_are_there_after_importing_the_package_alone() -> None:
    found = output_of("import tvm_ext; print(tvm_ext.tuners.options.__name__, tvm_ext.tuning.open_database.__name__)")
    assert found == "options open_database"


def test_public_names_are_found_when_asked_for() -> None:
    for name in tvm_ext.__all__:
        assert getattr(tvm_ext, name) is not None
        assert name in dir(tvm_ext)
    with pytest.raises(AttributeError, match="module 'tvm_ext' has no attribute 'nothing'"):
        _ = tvm_ext.nothing
