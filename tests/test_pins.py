"""The versions that ``pyproject.toml`` pins: with a wrong one a process dies, so it is tried in another one."""

from __future__ import annotations

from importlib.metadata import requires, version

from packaging.requirements import Requirement
from packaging.version import Version

from tests.processes import python

REMEDY = "the pin of apache-tvm-ffi in pyproject.toml is broken: "


def test_the_module_that_the_tuner_saves_can_be_saved() -> None:
    source = """
        import tvm
        from tvm import relax
        x = relax.Var("x", relax.TensorType((2, 3), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.add(x, x)))
        mod = relax.transform.LegalizeOps()(builder.get())
        tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(mod)), mod)
        print("saved and loaded")
    """
    done = python(source)
    installed = version("apache-tvm-ffi")
    assert done.returncode == 0, (
        f"{REMEDY}with version {installed} tvm.ir.save_json ended its process with code {done.returncode}; "
        f"install apache-tvm-ffi>=0.1.14.post0,<0.1.15. {done.stderr[-500:]}"
    )
    assert done.stdout.strip() == "saved and loaded"


def test_installed_versions_are_the_ones_asked_for() -> None:
    for text in requires("tvm-ext") or []:
        requirement = Requirement(text)
        if requirement.name in ("apache-tvm", "apache-tvm-ffi"):
            assert Version(version(requirement.name)) in requirement.specifier, f"{REMEDY}{text}"
