"""The rows a comparison is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.bench.peers import ENGINES
from tvm_ext.bench.protocol import ModelKind
from tvm_ext.errors import MissingPackageError, OptionError, candidates


@dataclass(frozen=True)
class Contender:
    """A row to be: an engine, what to call it, and its options.

    Attributes
    ----------
    engine : str
        A key of :data:`tvm_ext.bench.peers.ENGINES`.
    label : str
        Name of the row; the engine's name if left out.
    options : mapping
        Of ``tvm_ext`` keyword arguments of ``tvm_ext.compile``, and ``target`` for another than that of the comparison;
        of others what their row says: ``precision`` (``"f32"``, ``"bf16"``) of ``openvino``,
        ``exact`` (bool) of ``onnxruntime``.
    """

    engine: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise OptionError(f"unknown engine {self.engine!r}, {candidates(self.engine, ENGINES)}")
        takes = ENGINES[self.engine].options
        for name in self.options:
            if takes is not None and name not in takes:
                known = f"its options are {', '.join(takes)}" if takes else "it takes no options"
                raise OptionError(f"engine {self.engine!r} has no option {name!r}: {known}")
        if not self.label:
            object.__setattr__(self, "label", self.engine)


def choose_contenders(
    engines: Sequence[str | Contender] | None,
    kind: ModelKind,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> list[Contender]:
    """Check the engines asked for, or choose all that can run here; ``options`` are those of ``tvm_ext`` by name.

    Raises
    ------
    OptionError
        If an engine is unknown, does not run models of this kind, or two rows have one label.
    MissingPackageError
        If an engine that was asked for is not installed.
    """

    def named(name: str) -> Contender:
        return Contender(name, options=dict(options or {}) if name == "tvm_ext" else {})

    if engines is None:
        here = [name for name, info in ENGINES.items() if info.runs(kind) and device in info.devices]
        return [named(name) for name in here if not ENGINES[name].missing(kind)]
    contenders = [item if isinstance(item, Contender) else named(item) for item in engines]
    if not contenders:
        raise OptionError(f"no engine given; candidates are {', '.join(ENGINES)}")
    labels = [contender.label for contender in contenders]
    for label in labels:
        if labels.count(label) > 1:
            raise OptionError(f"two rows are called {label!r}; give each its own label")
    for contender in contenders:
        info = ENGINES[contender.engine]
        if not info.runs(kind):
            able = ", ".join(name for name, other in ENGINES.items() if other.runs(kind))
            raise OptionError(f"engine {info.name} does not run models of kind {kind}; these do: {able}")
        if missing := info.missing(kind):
            raise MissingPackageError(
                f"engine {info.name} needs {', '.join(missing)} for models of kind {kind}: {info.install}"
            )
    return contenders
