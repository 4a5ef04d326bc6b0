"""What the emulator reports: faults of a kernel, and conflicts of its accesses to shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field

OUT_OF_BOUNDS = "out of bounds"
MISALIGNED = "misaligned"
RACE = "race"
REDUNDANT = "redundant writes"
UNINITIALISED = "read before written"
DIVERGENT_BARRIER = "divergent barrier"
ASYNC = "read before its copy arrived"
BANK_CONFLICT = "bank conflict"


@dataclass
class Finding:
    """One fault of one access, however often it happened.

    Attributes
    ----------
    kind : str
        ``"out of bounds"``, ``"misaligned"`` (``cp.async``), ``"race"``, ``"divergent barrier"``,
        ``"read before written"`` (shared memory), ``"read before its copy arrived"`` (``cp.async``), and, which is no
        fault, ``"redundant writes"``: several threads store the same value.
    kernel, buffer, access : str
        Where: the kernel, the buffer with its scope, and the access as TIR prints it.
    text : str
        What happened the first time, with the block and the threads.
    count : int
        How many elements it happened to.
    """

    kind: str
    kernel: str
    buffer: str
    access: str
    text: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind} in kernel {self.kernel}, {self.access} of {self.buffer}: {self.text} ({self.count} in all)"


@dataclass
class BankConflict:
    """An access to shared memory for which the threads of a warp wait for each other.

    Attributes
    ----------
    kernel, buffer, access : str
        As in :class:`Finding`.
    ways : int
        Cycles that the worst warp needs for it: the most words of one bank, in one phase. There are 32 banks of 4
        bytes; accesses of 8 and 16 bytes are served in phases of 16 and 8 threads.
    """

    kernel: str
    buffer: str
    access: str
    ways: int

    def __str__(self) -> str:
        return f"bank conflict in kernel {self.kernel}, {self.access} of {self.buffer}: {self.ways} ways"


@dataclass
class Report:
    """Everything that was found while a function ran.

    Attributes
    ----------
    findings : list of Finding
    bank_conflicts : list of BankConflict
        Accesses of two ways and more.
    blocks, checked_blocks : int
        Thread blocks that ran, and those whose accesses were checked for races.
    """

    findings: list[Finding] = field(default_factory=list)
    bank_conflicts: list[BankConflict] = field(default_factory=list)
    blocks: int = 0
    checked_blocks: int = 0

    @property
    def faults(self) -> list[Finding]:
        """Findings that make a kernel wrong: all but threads that store the same value."""
        return [finding for finding in self.findings if finding.kind != REDUNDANT]

    @property
    def ways(self) -> int:
        """Ways of the worst access to shared memory; 1 without conflicts."""
        return max((conflict.ways for conflict in self.bank_conflicts), default=1)

    def of(self, kind: str) -> list[Finding]:
        """List the findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        worst: dict[tuple[str, str], tuple[BankConflict, int]] = {}
        for conflict in self.bank_conflicts:
            key = conflict.kernel, conflict.buffer
            known, count = worst.get(key, (conflict, 0))
            worst[key] = max(known, conflict, key=lambda one: one.ways), count + 1
        lines += [
            f"{conflict}" + (f", the worst of {count} accesses" if count > 1 else "")
            for conflict, count in worst.values()
        ]
        return "\n".join(lines) or "nothing found"
