"""What a compilation takes of a database: the fastest record of a kernel, unless that is known to do harm.

Three kinds do: records of another kind of target, whose threads or instructions this one does not have; records of
another rule's space than that of the rule that schedules the kernel, which was chosen because it is faster; and records
with which a whole network was slower than without (:mod:`tvm_ext.database.marks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.s_tir.schedule import Trace
from tvm.tirx import PrimFunc

from tvm_ext.database.marks import Identity, identity

Stranger = Callable[[PrimFunc, tvm.target.Target], Callable[[Trace], str | None]]
"""Of a kernel, makes what names the rule of a recorded trace, where that is not the one that schedules the kernel."""


def no_strangers(func: PrimFunc, target: tvm.target.Target) -> Callable[[Trace], str | None]:
    """Take all records for those of the rule that schedules the kernel."""
    return lambda trace: None


_left: ContextVar[Collection[Identity] | None] = ContextVar("left", default=())


@contextmanager
def leaving_alone(records: Collection[Identity] | None) -> Iterator[None]:
    """Have compilations inside leave kernels alone whose fastest record is one of these; all kernels with None."""
    token = _left.set(records)
    try:
        yield
    finally:
        _left.reset(token)


def all_left_alone() -> bool:
    """Whether this is inside of ``leaving_alone(None)``."""
    return _left.get() is None


@derived_object
class Answers(PyDatabase):
    """A view of a database that gives a kernel no record that does harm.

    Parameters
    ----------
    database : ms.Database
    stranger : callable
    left : collection of Identity
        Records that are left alone.

    Attributes
    ----------
    database : ms.Database
    taken : dict from str to Identity
        The record of each kernel that has one.
    left : dict from str to Identity
        Of each kernel that has none because its fastest record is left alone, that record.
    strangers : dict from str to str
        Of each kernel whose fastest record is of another rule's space, that rule.
    foreign : dict from str to str
        Of each kernel that has a record of another kind of target, that kind.
    """

    def __init__(self, database: ms.Database, stranger: Stranger, left: Collection[Identity]) -> None:
        super().__init__()
        self.database, self._stranger, self._marks = database, stranger, left
        self.taken: dict[str, Identity] = {}
        self.left: dict[str, Identity] = {}
        self.strangers: dict[str, str] = {}
        self.foreign: dict[str, str] = {}

    def query_tuning_record(
        self, mod: tvm.IRModule, target: tvm.target.Target, workload_name: str | None = None
    ) -> TuningRecord | None:
        """Give the fastest record of a kernel that does no harm."""
        name = str(workload_name)
        of_another_rule = self._stranger(mod["main"], target)
        for record in self._fastest_first(mod, target, workload_name):
            kind = target.kind.name if record.target is None else record.target.kind.name
            if kind != target.kind.name:
                self.foreign.setdefault(name, kind)
                continue
            rule = of_another_rule(record.trace)
            if rule is not None:
                self.strangers.setdefault(name, rule)
                continue
            who = identity(record)
            if self.is_left(who):
                self.left[name] = who
                return None
            self.taken[name] = who
            return record
        return None

    @property
    def known(self) -> bool:
        """Whether any kernel was known, be its records taken or not."""
        return bool(self.taken or self.left or self.strangers or self.foreign)

    def is_left(self, record: Identity) -> bool:
        """Tell whether a record is left alone."""
        return record in self._marks or record in (_left.get() or ())

    def _fastest_first(self, mod: tvm.IRModule, target: tvm.target.Target, name: str | None) -> Iterator[TuningRecord]:
        first = self.database.query_tuning_record(mod, target, name)
        if first is None:
            return
        yield first
        yield from self.database.get_top_k(self.database.commit_workload(mod), 1 << 20)[1:]

    def has_workload(self, mod: tvm.IRModule) -> bool:
        """Tell whether a workload is known."""
        return self.database.has_workload(mod)

    def commit_workload(self, mod: tvm.IRModule) -> Workload:
        """Give the workload of a module."""
        return self.database.commit_workload(mod)

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        """Give the fastest records of a workload, those that do harm included."""
        return list(self.database.get_top_k(workload, top_k))

    def __len__(self) -> int:
        return len(self.database)
