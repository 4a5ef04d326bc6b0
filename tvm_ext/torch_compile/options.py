"""Options of ``torch.compile(model, backend="tvm_ext", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from tvm_ext.errors import OptionError, candidates
from tvm_ext.options import OPT_LEVEL, PipelineOptions
from tvm_ext.target import resolve_target

WEIGHTS = ("constant", "argument")


@dataclass(frozen=True)
class BackendOptions:
    """What the backend does; all further options are those of the pipeline.

    Attributes
    ----------
    fallback : bool
        Whether PyTorch runs what cannot be compiled, with a warning that names the operators; else it is an error.
    weights : str
        ``constant``: parameters and buffers are part of the compiled code, packed for its kernels; where they change,
        it is compiled anew. ``argument``: they are read in every call.
    target : str, mapping or tvm.target.Target, optional
        See :func:`tvm_ext.target.resolve_target`; this machine's CPU by default.
    pipeline : dict
        Fields of :class:`tvm_ext.options.PipelineOptions`, and ``opt_level``.
    """

    fallback: bool = True
    weights: str = "constant"
    target: Any = None
    pipeline: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None, mode: str | None) -> BackendOptions:
        """Read what was given to ``torch.compile``.

        Raises
        ------
        OptionError
            If an option or its value is unknown.
        TargetError
            If there is no such target.
        """
        if mode not in (None, "default"):
            raise OptionError(f"mode={mode!r} is for inductor; backend tvm_ext takes options={{...}}: {_listed()}")
        given = dict(options or {})
        for name in given:
            if name not in _names():
                near = get_close_matches(str(name), _names(), n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise OptionError(f"unknown option {name!r} of backend tvm_ext; {hint}options are {_listed()}")
        own = {name: given.pop(name) for name in _OWN if name in given}
        parsed = cls(pipeline=given, **own)
        if not isinstance(parsed.fallback, bool):
            raise OptionError(f"option fallback: {parsed.fallback!r} is neither True nor False")
        if parsed.weights not in WEIGHTS:
            raise OptionError(
                f"option weights: unknown value {parsed.weights!r}, {candidates(str(parsed.weights), WEIGHTS)}"
            )
        PipelineOptions.from_keywords(given)
        resolve_target(parsed.target)
        return parsed


_OWN = ("fallback", "weights", "target")


def _names() -> list[str]:
    return [*_OWN, *(item.name for item in fields(PipelineOptions)), OPT_LEVEL]


def _listed() -> str:
    return ", ".join(_names())
