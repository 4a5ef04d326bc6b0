"""A plugin of pytest: durations are of the processor. On a machine that others use, too, clocks tell little.

    python -m pytest -p scripts.processor_time --durations=0 -vv

A test's time is that of all threads of the process, and of processes that it started and that have ended.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def _processor_seconds() -> float:
    return sum(os.times()[:4])


class _Durations:
    """Replaces the durations in the reports of set-up, call and tear-down."""

    def __init__(self) -> None:
        self._start = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        end = _processor_seconds()
        report = yield
        report.duration, self._start = end - self._start, end
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._start = _processor_seconds()


def pytest_configure(config: pytest.Config) -> None:
    """Take part."""
    config.pluginmanager.register(_Durations())
