"""Recipes that begin with what was learnt of other networks' kernels, or of other kernels' loop nests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm_ext.backends.description import KernelDescription
from tvm_ext.errors import TuningError
from tvm_ext.tuners.cost_model import CostModel
from tvm_ext.tuners.pretrained.artefact import Pretrained, Trained, shipped
from tvm_ext.tuners.pretrained.loop_nests import LoopNestModel
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.recipe import Recipe, as_recipe
from tvm_ext.tuners.shared_model import Peers
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.tuner import Tuner
from tvm_ext.tuners.validity import Oracle


@dataclass(frozen=True)
class PretrainedRecipe(Recipe):
    """Parts with a cost model that was trained on other networks' kernels; it learns from nothing where none was.

    Attributes
    ----------
    artefact : Pretrained, optional
        What was trained; that of the package if left out.
    costs : bool
        Whether the cost that a schedule rule estimates is heard, where a space tells it.
    trees : bool
        Whether what was trained is looked for at all.
    fault : str
        Why nothing could be read of the file that the artefact should have been.
    """

    cost_model: Callable[[], CostModel] = PretrainedModel
    artefact: Pretrained | None = None
    costs: bool = True
    trees: bool = True
    fault: str = ""

    @property
    def shares(self) -> bool:
        """Measurements of peers come between what was trained before and the space's own."""
        return self.cost_model is PretrainedModel or super().shares

    def tuner(
        self,
        space: ConfigSpace,
        seed: int = 0,
        peers: Peers | None = None,
        oracle: Oracle | None = None,
        description: KernelDescription | None = None,
    ) -> Tuner:
        """See :meth:`Recipe.tuner`; the tuner's notes say why no pretrained model is used."""
        if self.cost_model is not PretrainedModel:  # of one's own
            return super().tuner(space, seed, peers, oracle, description)
        costs = self.costs and space.cost is not None
        if not self.trees:
            parts = replace(as_recipe(self), cost_model=lambda: PretrainedModel(costs=costs))
            return parts.tuner(space, seed, peers, oracle, description)
        try:
            if self.fault:
                raise TuningError(self.fault)
            trained = (self.artefact or shipped()).of(space)
            model = PretrainedModel(trained=trained, costs=costs)
            trained.check_width(model.features(space, space.vectors([0])).shape[1])
            remarks = []
        except TuningError as error:
            model = PretrainedModel(costs=costs)
            begins = "begins with what the schedule rule estimates" if costs else "learns from nothing"
            remarks = [f"no pretrained cost model is used: {error}; the tuner {begins}"]
        tuner = replace(as_recipe(self), cost_model=lambda: model).tuner(space, seed, peers, oracle, description)
        tuner.remarks += remarks
        return tuner


@dataclass(frozen=True)
class LoopNestRecipe(Recipe):
    """Parts with a cost model that looks at scheduled loop nests, and was trained on those of other kernels.

    It is for MetaSchedule's design spaces, where knobs are of no kernel in particular.

    Attributes
    ----------
    artefact : Pretrained, optional
        What was trained; that of the package if left out.
    """

    cost_model: Callable[[], CostModel] = LoopNestModel
    artefact: Pretrained | None = None

    @property
    def shares(self) -> bool:
        """Measurements of other spaces are not learnt from: their schedules are not at hand."""
        return self.cost_model is not LoopNestModel and super().shares

    def tuner(
        self,
        space: ConfigSpace,
        seed: int = 0,
        peers: Peers | None = None,
        oracle: Oracle | None = None,
        description: KernelDescription | None = None,
    ) -> Tuner:
        """See :meth:`Recipe.tuner`; the tuner's notes say why no pretrained model is used."""
        if self.cost_model is not LoopNestModel:  # of one's own
            return super().tuner(space, seed, peers, oracle, description)
        trained: Trained | None = None
        remarks: list[str] = []
        try:
            trained = (self.artefact or shipped()).of_loop_nests()
        except TuningError as error:
            remarks = [f"no pretrained cost model is used: {error}; the tuner learns from nothing"]
        # Peers have other loop nests, and no schedules to look at.
        parts = replace(as_recipe(self), cost_model=lambda: LoopNestModel(trained=trained))
        tuner = parts.tuner(space, seed, None, oracle, description)
        tuner.remarks += remarks
        return tuner
