"""The tuners there are: each one row of a table of parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tvm_ext.backends.description import KernelDescription
from tvm_ext.errors import OptionError, TuningError, candidates
from tvm_ext.tuners.acquisition import check_acquisition
from tvm_ext.tuners.cost_model import CostModel, TileModel, XGBoostModel
from tvm_ext.tuners.described_model import DescribedModel
from tvm_ext.tuners.explorers import Evolution, Exhaustive, Explorer, RandomSearch, SimulatedAnnealing
from tvm_ext.tuners.explorers.actor_critic import ActorCritic
from tvm_ext.tuners.glimpse.artefact import Artefact
from tvm_ext.tuners.glimpse.guide import Guide
from tvm_ext.tuners.glimpse.parts import GuidedModel, GuidedSampler, PriorInitialiser
from tvm_ext.tuners.glimpse.tuner import GuidedTuner
from tvm_ext.tuners.initialisers import (
    EnumeratingInitialiser,
    Initialiser,
    LocalInitialiser,
    SpaceFillingInitialiser,
    ValidityInitialiser,
)
from tvm_ext.tuners.pretrained.artefact import Pretrained
from tvm_ext.tuners.pretrained.recipe import LoopNestRecipe, PretrainedRecipe
from tvm_ext.tuners.recipe import Recipe, as_recipe
from tvm_ext.tuners.samplers import AdaptiveSampler, DiversitySampler, GreedySampler, ReducedSampler, Sampler
from tvm_ext.tuners.shared_model import Peers, SharedModel
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.tuner import Tuner
from tvm_ext.tuners.validity import Oracle

BONUS = 1 / 14
"""What is known to work is preferred by so much of the range of predictions; in the source by 1, where they lie within
-7 and 7."""


def _annealing(seed: int) -> Explorer:
    return SimulatedAnnealing()


def _wide_annealing(seed: int) -> Explorer:
    """Half as many queries as AutoTVM's, in steps of twice as many chains, as trees without tables are slower."""
    return SimulatedAnnealing(chains=256, steps=120, patience=120)


def _short_annealing(seed: int) -> Explorer:
    """As much as a search needs that a prior leads: of many chains, as large trees are asked at once."""
    return SimulatedAnnealing(chains=512, steps=16, patience=16)


def _short_agent(seed: int) -> Explorer:
    return ActorCritic(episodes=64, steps=60, parallel=32, seed=seed)


def _agent(seed: int) -> Explorer:
    return ActorCritic(steps=100, parallel=32, seed=seed)


def _published_agent(seed: int) -> Explorer:
    return ActorCritic(seed=seed)


def _exhaustive(seed: int) -> Explorer:
    return Exhaustive()


def _evolution(seed: int) -> Explorer:
    return Evolution()


def _small_evolution(seed: int) -> Explorer:
    """Where a prediction takes a schedule."""
    return Evolution(population=48, generations=3, elite=16)


def _random(seed: int) -> Explorer:
    return RandomSearch(pool=64)


def _adaptive(synthesis: bool = True, step: int = 8, threshold: float = 2.5) -> AdaptiveSampler:
    """Of each cluster the best predicted, clusters found among the factors."""
    return AdaptiveSampler(
        step=step, threshold=threshold, synthesis=synthesis, synthesized=1, representative="best", distance="features"
    )


def _random_of_presampled() -> Initialiser:
    return ValidityInitialiser(maximise=False)


def _reduced(choose: Literal["best", "random"]) -> Callable[[], Sampler]:
    return lambda: ReducedSampler(choose, _adaptive())


# Names of the first four: Ahn et al., "Chameleon", ICLR 2020, table 2 (SA, AE, SA+AS, AE+AS).
RECIPES: dict[str, Recipe] = {
    "autotvm_sa": Recipe(_annealing),
    "ppo": Recipe(_agent),
    "sa_as": Recipe(_annealing, _adaptive, pool=4),
    "chameleon": Recipe(_agent, _adaptive),
    # With a better cost model, and half of each batch around the best measured configurations.
    "sa_as_tiles": Recipe(_wide_annealing, _adaptive, cost_model=TileModel, pool=4, refined_share=0.5),
    "chameleon_tiles": Recipe(_agent, _adaptive, cost_model=TileModel, pool=4, refined_share=0.5),
    # With what was measured of other spaces as a prior.
    "sa_as_shared": Recipe(_wide_annealing, _adaptive, cost_model=SharedModel, pool=4, refined_share=0.5),
    "chameleon_shared": Recipe(_agent, _adaptive, cost_model=SharedModel, pool=4, refined_share=0.5),
    "evolution_shared": Recipe(_evolution, initialiser=LocalInitialiser, cost_model=SharedModel, batch=16, initial=16),
    # With a validity oracle of the target: Rieber, dissertation, Heidelberg University, 2023, section 5.2.
    "validity": Recipe(_annealing, initialiser=ValidityInitialiser, batch=50, initial=50, validity_bonus=BONUS),
    "validity_asked": Recipe(
        _annealing, initialiser=ValidityInitialiser, batch=50, initial=50, validity_bonus=BONUS, asks_first=True
    ),
    "chameleon_validity": Recipe(
        _agent, _adaptive, ValidityInitialiser, batch=50, initial=50, pool=4, validity_bonus=BONUS, asks_first=True
    ),
    # The same without one of its parts each.
    "validity_without_distance": Recipe(
        _annealing, initialiser=_random_of_presampled, batch=50, initial=50, validity_bonus=BONUS
    ),
    "validity_without_bias": Recipe(_annealing, initialiser=ValidityInitialiser, batch=50, initial=50),
    # As the paper has it: rounded centres of the 64 best, clusters among the choices; episodes of up to 500 steps.
    "ppo_published": Recipe(_published_agent),
    "sa_as_published": Recipe(_annealing, AdaptiveSampler),
    "chameleon_published": Recipe(_published_agent, AdaptiveSampler),
    "autotvm_diversity": Recipe(_annealing, DiversitySampler),
    "evolution": Recipe(_evolution, initialiser=SpaceFillingInitialiser, batch=16, initial=16),
    "random": Recipe(_random, random_share=1.0),
    # Controls: as few measurements as adaptive sampling, without its choice of where.
    "sa_greedy_reduced": Recipe(_annealing, _reduced("best"), pool=4),
    "sa_random_reduced": Recipe(_annealing, _reduced("random"), pool=4),
    "ppo_greedy_reduced": Recipe(_agent, _reduced("best")),
    "ppo_random_reduced": Recipe(_agent, _reduced("random")),
    # One half of what sa_as_tiles has, and the other; and annealing with its cost model.
    "sa_as_tiles_unrefined": Recipe(_wide_annealing, _adaptive, cost_model=TileModel, pool=4),
    "sa_as_refined": Recipe(_annealing, _adaptive, pool=4, refined_share=0.5),
    "autotvm_sa_tiles": Recipe(_wide_annealing, cost_model=TileModel),
    "sa_as_without_synthesis": Recipe(_annealing, lambda: _adaptive(synthesis=False), pool=4),
    "sa_as_step_1": Recipe(_annealing, lambda: _adaptive(step=1), pool=4),
    "sa_as_threshold_1.5": Recipe(_annealing, lambda: _adaptive(threshold=1.5), pool=4),
    "sa_as_threshold_5": Recipe(_annealing, lambda: _adaptive(threshold=5.0), pool=4),
}


@dataclass(frozen=True)
class GuidedRecipe(Recipe):
    """Parts that follow what was trained on other machines and layers; without that, another recipe.

    Attributes
    ----------
    artefact : Artefact, optional
        What was trained; that of the package if left out.
    begins, chooses, rejects : bool
        Whether the prior, the acquisition function and the validity ensemble are used. Where there is a cost model of
        one's own, the prior only chooses the first configurations.
    plain, plain_asking, plain_costing : str
        Recipe to use when there is nothing to follow, with a validity oracle, and where the schedule rule tells what it
        expects of configurations, of the data sheet of the machine: that is the prior then.
    """

    artefact: Artefact | None = None
    begins: bool = True
    chooses: bool = True
    rejects: bool = True
    plain: str = "evolution_shared"
    plain_asking: str = "validity"
    plain_costing: str = "evolution_pretrained"

    @property
    def shares(self) -> bool:
        """Whether the recipe that is used when there is nothing to follow learns from others."""
        return super().shares if self._has_own_model else RECIPES[self.plain].shares

    @property
    def _has_own_model(self) -> bool:
        return self.cost_model is not XGBoostModel

    @property
    def asks(self) -> bool:
        """Whether a validity oracle is asked at all."""
        return False

    def tuner(
        self,
        space: ConfigSpace,
        seed: int = 0,
        peers: Peers | None = None,
        oracle: Oracle | None = None,
        description: KernelDescription | None = None,
    ) -> Tuner:
        """See :meth:`Recipe.tuner`; the tuner's notes say why another recipe is used."""
        try:
            if description is None:
                raise TuningError("the target says nothing of the kernel that a prior could be asked with")
            guide = Guide(description, space, self.artefact)
        except TuningError as error:
            plain = self.plain if space.cost is None else self.plain_costing
            name = plain if oracle is None else self.plain_asking
            row = replace(RECIPES[name], cost_model=self.cost_model) if self._has_own_model else RECIPES[name]
            tuner = row.tuner(space, seed, peers, oracle)
            hears = name == self.plain_costing and not self._has_own_model
            prior = "what the schedule rule estimates is the prior" if hears else "no prior is used"
            tuner.remarks = [f"{prior}: {error}; the tuner is {name}"]
            return tuner
        follows = self.begins and not self._has_own_model
        model = GuidedModel(guide=guide, rejects=self.rejects) if follows else self.cost_model()
        inner = None if self.sampler is GreedySampler else self.sampler()
        return GuidedTuner(
            space,
            self.explorer(seed),
            GuidedSampler(guide, model, self.rejects, self.chooses, inner),
            PriorInitialiser(guide, self.rejects) if self.begins else self.initialiser(),
            model,
            seed=seed,
            batch=self.batch,
            initial=self.initial,
            pool=self.pool,
            random_share=0.0,
            guide=guide,
        )


@dataclass(frozen=True)
class DescribedRecipe(Recipe):
    """Parts with a cost model that sees what the target says of configurations, where it says anything.

    Attributes
    ----------
    listens : bool
        Whether the model sees it; else tiles only.
    expects : bool
        Whether the model begins with the cost that the target estimates.
    members : int
        Models whose mean is predicted.

    A cost model of one's own takes the place of all three.
    """

    cost_model: Callable[[], CostModel] = DescribedModel
    batch: int = 10
    initial: int = 10
    listens: bool = True
    expects: bool = False
    members: int = 1

    def tuner(
        self,
        space: ConfigSpace,
        seed: int = 0,
        peers: Peers | None = None,
        oracle: Oracle | None = None,
        description: KernelDescription | None = None,
    ) -> Tuner:
        """See :meth:`Recipe.tuner`; a cost model of one's own sees what it asks for itself."""
        if self.cost_model is not DescribedModel:
            return super().tuner(space, seed, peers, oracle)
        if not self.listens or description is None:
            parts = replace(as_recipe(self), cost_model=lambda: DescribedModel(members=self.members))
            tuner = parts.tuner(space, seed, peers, oracle)
            if self.expects:
                tuner.remarks = ["the target says nothing of the kernel beforehand: the tuner learns from nothing"]
            return tuner
        model = DescribedModel(description=description, expects=self.expects, members=self.members)
        # Of peers the target has other descriptions.
        tuner = replace(as_recipe(self), cost_model=lambda: model).tuner(space, seed, None, oracle)
        if self.expects and description.cost is None:
            tuner.remarks = ["the target expects nothing of configurations: the tuner learns from nothing"]
        return tuner


RECIPES |= {
    # What works is enumerated, and all of it ranked by a model that sees bytes, fill of memories and turns of loops.
    "validity_exhaustive": DescribedRecipe(
        _exhaustive, initialiser=EnumeratingInitialiser, validity_bonus=0.0, asks_first=True
    ),
    "validity_exhaustive_undescribed": DescribedRecipe(
        _exhaustive, initialiser=EnumeratingInitialiser, validity_bonus=0.0, asks_first=True, listens=False
    ),
    # The same with the mean of four models and without random configurations, and that without an oracle.
    "validity_averaged": DescribedRecipe(
        _exhaustive,
        initialiser=EnumeratingInitialiser,
        validity_bonus=0.0,
        asks_first=True,
        members=4,
        random_share=0.0,
    ),
    "averaged": DescribedRecipe(_exhaustive, members=4, random_share=0.0),
    # One model, beginning with what the target estimates.
    "validity_expected": DescribedRecipe(
        _exhaustive, initialiser=EnumeratingInitialiser, validity_bonus=0.0, asks_first=True, expects=True
    ),
    # The same without an oracle.
    "expected": DescribedRecipe(_exhaustive, expects=True),
    "exhaustive": DescribedRecipe(_exhaustive),
    "exhaustive_undescribed": DescribedRecipe(_exhaustive, listens=False),
    "sa_as_pretrained": PretrainedRecipe(_short_annealing, _adaptive, pool=4, refined_share=0.5),
    "chameleon_pretrained": PretrainedRecipe(_short_agent, _adaptive, pool=4, refined_share=0.5),
    "evolution_pretrained": PretrainedRecipe(_evolution, initialiser=LocalInitialiser, batch=16, initial=16),
    # With the rule's own cost, and nothing that was trained before.
    "evolution_expected": PretrainedRecipe(_evolution, initialiser=LocalInitialiser, batch=16, initial=16, trees=False),
    # A schedule a prediction: few of them, in small generations.
    "evolution_loops": LoopNestRecipe(_small_evolution, initialiser=LocalInitialiser, batch=16, initial=16),
    # Ahn, dissertation, UC San Diego, 2022, chapter 4; batches half as large as annealing's, as the first ones count.
    "glimpse": GuidedRecipe(_annealing, batch=32, initial=32, pool=4),
    "chameleon_glimpse": GuidedRecipe(_agent, _adaptive, batch=32, initial=32, pool=4, chooses=False),
    # The same without one of its parts each.
    "glimpse_without_prior": GuidedRecipe(_annealing, batch=32, initial=32, pool=4, begins=False),
    "glimpse_without_acquisition": GuidedRecipe(_annealing, batch=32, initial=32, pool=4, chooses=False),
    "glimpse_without_ensemble": GuidedRecipe(_annealing, batch=32, initial=32, pool=4, rejects=False),
}


def recipe(name: str, batch: int | None = None, initial: int | None = None, acquisition: str | None = None) -> Recipe:
    """Look a recipe up, with another batch, number of first configurations or acquisition function if wanted.

    Parameters
    ----------
    name : str
    batch, initial : int, optional
    acquisition : str, optional
        A row of :data:`tvm_ext.tuners.acquisition.ACQUISITIONS`; else the best predicted come first.

    Raises
    ------
    OptionError
        If there is none of that name; the message lists those there are. If a number is no integer of 1 or more. If the
        recipe has no use for an acquisition function, or one of its own.
    """
    if not isinstance(name, str) or name not in RECIPES:
        raise OptionError(f"unknown tuner {name!r}, {candidates(str(name), RECIPES)}")
    for what, number in (("batch", batch), ("initial", initial)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise OptionError(f"{what} of tuner {name!r} is {number!r}; expected 1 or more configurations")
    row = RECIPES[name]
    if acquisition is not None:
        check_acquisition(acquisition)
        if isinstance(row, GuidedRecipe) or row.random_share >= 1:
            has = "has one of its own" if isinstance(row, GuidedRecipe) else "draws at random"
            raise OptionError(f"acquisition is {acquisition!r}, but tuner {name!r} {has}; leave it out")
    return replace(row, batch=batch or row.batch, initial=initial or row.initial, acquisition=acquisition)


def with_artefact(row: Recipe, name: str, path: Path) -> PretrainedRecipe:
    """Give a recipe the cost model of a file; of a damaged one, none, and tuners say why.

    Raises
    ------
    OptionError
        If it is a recipe without a pretrained cost model.
    TuningError
        If there is no such file.
    """
    if not (isinstance(row, PretrainedRecipe) and row.trees):
        takers = ", ".join(key for key, other in RECIPES.items() if isinstance(other, PretrainedRecipe) and other.trees)
        raise OptionError(f"tuner {name!r} has no use for a pretrained cost model; {takers} have")
    if not path.is_file():
        raise TuningError(
            f"there is no file {path}: expected a pretrained cost model, as scripts/pretrain.py writes it"
        )
    try:
        return replace(row, artefact=Pretrained.load(path))
    except TuningError as error:
        return replace(row, fault=str(error))
