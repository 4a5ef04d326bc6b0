from __future__ import annotations

import ast
import doctest
from pathlib import Path

import pytest

import tvm_ext.memory


def test_the_public_names_exist():
    for name in tvm_ext.memory.__all__:
        value = getattr(tvm_ext.memory, name)
        assert not isinstance(value, type(tvm_ext.memory)), f"{name} is a module"
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        tvm_ext.memory.no_such_name  # noqa: B018


def test_the_planners_are_plain_data():
    for path in Path(tvm_ext.memory.__file__).parent.glob("*.py"):
        for statement in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
            assert all(name.split(".")[0] != "tvm" for name in names), path.name


def test_the_example_of_the_package():
    assert doctest.testmod(tvm_ext.memory).failed == 0
    assert doctest.testmod(tvm_ext.memory).attempted > 5
