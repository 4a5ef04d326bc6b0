"""A tuner with a guide, which is told how long the run will be."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.tuners.glimpse.guide import Guide
from tvm_ext.tuners.tuner import Tuner


@dataclass
class GuidedTuner(Tuner):
    """A tuner whose parts follow a guide.

    Attributes
    ----------
    guide : Guide
    """

    guide: Guide | None = None

    def fit_budget(self, trials: int) -> None:
        """See :meth:`.Tuner.fit_budget`; the acquisition function looks at how many trials are left."""
        super().fit_budget(trials)
        if self.guide is not None:
            self.guide.budget = max(trials, 1)
