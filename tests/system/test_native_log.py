from __future__ import annotations

import os

import pytest

from tvm_ext.system.native_log import captured_stderr


def test_what_cpp_writes_to_stderr_is_collected(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr() as lines:
        os.write(2, b"first\nsecond\xff\n")
    os.write(2, b"third\n")
    assert lines == ["first", "second\N{REPLACEMENT CHARACTER}"]
    assert capfd.readouterr().err == "third\n"


def test_what_cpp_writes_is_collected_when_the_call_fails(capfd: pytest.CaptureFixture[str]) -> None:
    collected: list[str] = []

    def fail() -> None:
        nonlocal collected
        with captured_stderr() as collected:
            os.write(2, b"first\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    os.write(2, b"second\n")
    assert collected == ["first"]
    assert capfd.readouterr().err == "second\n"
