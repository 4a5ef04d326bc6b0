"""What the inspect page shows, as plain data that serialises to JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tvm_ext.backends.backend import ResourceTable
from tvm_ext.graph.decisions import Decision
from tvm_ext.graph.symbolic import Dim, Symbolic

if TYPE_CHECKING:
    from tvm_ext.report.embeddings import EmbeddedOperator
    from tvm_ext.report.profile import Profile


@dataclass(frozen=True)
class Operator:
    """All uses of one operator in the model as imported.

    Attributes
    ----------
    name : str
        Operator or function called.
    count : int
        Number of uses.
    flops : int, Symbolic or None
        Arithmetic of all uses; None where unknown for one of them.
    bytes_written : int, Symbolic or None
        Bytes of the results that are allocated; views write none.
    """

    name: str
    count: int
    flops: Dim | None
    bytes_written: Dim | None


@dataclass(frozen=True)
class Kernel:
    """One PrimFunc after the pipeline.

    Attributes
    ----------
    name : str
        Name of the PrimFunc.
    calls : int
        How many nodes call it.
    flops : int, Symbolic or None
        Arithmetic of one call; None where there is no static count.
    bytes_read, bytes_written : int, Symbolic or None
        Tensors that one call takes and makes, each once.
    rule : str
        The schedule rule that took it, ``scheduled`` for a schedule from elsewhere (a database of tuning records, TVM's
        own rules for GPUs), ``""`` for none: its loops are compiled as they are.
    operators : tuple of str
        The operators fused into it, in order; one for a kernel that was not fused.
    bytes_inside : int, Symbolic or None
        Intermediate tensors between those operators, which fusion keeps out of memory.
    types : tuple of str
        The mapping type of each of those operators, such as ``One-to-One``.
    mapping : str
        The mapping type of the kernel.
    """

    name: str
    calls: int
    flops: Dim | None
    bytes_read: Dim | None
    bytes_written: Dim | None
    rule: str
    operators: tuple[str, ...]
    bytes_inside: Dim | None
    types: tuple[str, ...] = ()
    mapping: str = ""


@dataclass(frozen=True)
class Rewriting:
    """One rule of algebra that was applied, and how often.

    Attributes
    ----------
    rule : str
        Before and after, such as ``a * c + a * b -> a * (b + c)``.
    count : int
        Places where it was applied.
    """

    rule: str
    count: int


@dataclass(frozen=True)
class TensorLife:
    """One storage, and when it is alive in the order of the pipeline.

    Attributes
    ----------
    name, type, kind : str
        Variable, ``dtype[shape]``, and ``intermediate``, ``output``, ``input`` or ``constant``.
    nbytes : int, Symbolic or None
        Size.
    made_by : str
        Kernel or operator that defines it; ``""`` for inputs and constants.
    used_by : tuple of str
        Kernels and operators that read it or a view of it, in order.
    """

    name: str
    type: str
    kind: str
    nbytes: Dim | None
    made_by: str
    used_by: tuple[str, ...]


@dataclass(frozen=True)
class MemoryProfile:
    """Bytes alive over time for one order of the nodes, or for a memory plan.

    Attributes
    ----------
    name, summary : str
        What the line is called, and what it stands for.
    during : tuple of int
        Bytes alive while each step that computes something runs.
    peak : int
        The most of them.
    peak_step : int
        Index into ``during`` of the first step with that many bytes.
    live_at_peak : tuple of (str, str, int)
        Name, type and bytes of the storages alive there, largest first.
    """

    name: str
    summary: str
    during: tuple[int, ...]
    peak: int
    peak_step: int
    live_at_peak: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class MemoryChart:
    """Profiles of one graph, which share their steps.

    Attributes
    ----------
    title, summary : str
        Of the chart.
    profiles : tuple of MemoryProfile
        At least one.
    missing : str
        Why there are none, where a size is not a number; else ``""``.
    """

    title: str
    summary: str
    profiles: tuple[MemoryProfile, ...]
    missing: str = ""


@dataclass(frozen=True)
class PhaseTime:
    """One phase of the pipeline.

    Attributes
    ----------
    name, summary : str
        As in :data:`tvm_ext.phases.PHASES`; ``import`` comes first.
    seconds : float
        Wall-clock time.
    nodes : int
        Bindings of ``main`` afterwards.
    kernels : int
        PrimFuncs of the module afterwards.
    """

    name: str
    summary: str
    seconds: float
    nodes: int
    kernels: int


@dataclass(frozen=True)
class Inspection:
    """Everything that the page shows.

    Attributes
    ----------
    model : str
        File or kind of object.
    target : str
        What it was lowered for.
    versions : dict of str to str
        Packages that took part.
    inputs, outputs : tuple of (str, str)
        Name and type of each.
    notes : tuple of str
        What importing did to the model.
    operator_uses : int
        Operators of the imported model; what only takes a tuple apart or gives a value a name is not counted.
    flops : dict of str to (int or Symbolic)
        ``multiply``, ``add``, ``other`` and ``total`` of the nodes whose count is known.
    unknown_flops : tuple of str
        Operators without a count.
    constant_bytes : int
        Weights and other constants of the imported model.
    planned_bytes : int or None
        Storages that the memory plan reserves, all together; None when nothing was planned.
    operators, kernels, tensors, memory, phases
        The tables and charts.
    layouts : tuple of Decision
        How convolutions and products are computed; none where no pass of a layout took them.
    rewritings : tuple of Rewriting
        What the option ``rewrite`` did, most frequent first; none where it is off.
    rewritten_flops : tuple of two int
        Operations of the rewritten parts of the model, before and after.
    resources : ResourceTable, optional
        What the kernels take of a processor for which that is found by compiling them.
    profile : Profile, optional
        Where the time of a run goes, if it was run.
    embeddings : tuple of EmbeddedOperator, optional
        How the target's instructions fit the multiply-accumulate kernels, if that was asked for.
    """

    model: str
    target: str
    versions: dict[str, str]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    operator_uses: int
    flops: dict[str, Dim]
    unknown_flops: tuple[str, ...]
    constant_bytes: int
    planned_bytes: int | None
    operators: tuple[Operator, ...]
    kernels: tuple[Kernel, ...]
    tensors: tuple[TensorLife, ...]
    memory: tuple[MemoryChart, ...]
    phases: tuple[PhaseTime, ...]
    layouts: tuple[Decision, ...] = ()
    rewritings: tuple[Rewriting, ...] = ()
    rewritten_flops: tuple[int, int] = (0, 0)
    resources: ResourceTable | None = None
    profile: Profile | None = None
    embeddings: tuple[EmbeddedOperator, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Turn into dictionaries, lists, numbers and strings; a symbolic size becomes its formula."""
        own = {
            "profile": None if self.profile is None else self.profile.to_json(),
            "embeddings": None if self.embeddings is None else [operator.to_json() for operator in self.embeddings],
        }
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self) if item.name not in own} | own


def _plain(value: Any) -> Any:
    if isinstance(value, Symbolic):
        return str(value)
    if isinstance(value, Decision):
        return value.to_json()
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
