"""A tuner: suggests configurations, learns from their measurements; knows nothing of what is tuned."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tvm_ext.errors import OptionError, TuningError
from tvm_ext.tuners.acquisition import ACQUISITIONS, check_acquisition
from tvm_ext.tuners.cost_model import CostModel, numbers_for, said_by, scorer_of
from tvm_ext.tuners.explorers.base import Exploration, Explorer, Score
from tvm_ext.tuners.initialisers import EnumeratingInitialiser, Initialiser, Start
from tvm_ext.tuners.measurement import ErrorKind, Measurement
from tvm_ext.tuners.rescoring import Rescorer
from tvm_ext.tuners.samplers.base import History, Sampler, random_unvisited, unvisited
from tvm_ext.tuners.score_table import TABULATED, ScoreTable
from tvm_ext.tuners.shared_model import Peers, SharedModel
from tvm_ext.tuners.space import ConfigSpace, Vector
from tvm_ext.tuners.validity import Validity

STATE_FORMAT = 1
INCUMBENTS = 4
"""So many of the best measured configurations are refined."""

LEAST_OF_PEERS = 64
"""A cost model does not learn from fewer measurements of its peers."""

FEWEST_BATCHES = 4
"""So many batches, the first one included, fit into a budget."""

LEAST_BATCH = 4
"""No batch is made smaller than this."""

ASKED = 4
"""Where an oracle is asked beforehand, it is asked for so many times as many candidates as are needed."""

ACQUIRED = 4
"""An acquisition function orders so many times as many candidates as are needed: the best predicted among all."""

GROWTH = 1.25
"""The cost model learns from its peers anew when these have made so many times as many measurements."""


@dataclass
class Effort:
    """What searching has cost so far: iterations, queries of the cost model, steps of the walkers."""

    iterations: int = 0
    queries: int = 0
    converged_queries: int = 0
    steps: float = 0.0

    def add(self, exploration: Exploration) -> None:
        """Count one iteration."""
        self.iterations += 1
        self.queries += exploration.queries
        self.converged_queries += exploration.converged_queries
        self.steps += exploration.steps


@dataclass
class Tuner:
    """Initialiser, explorer, sampler and cost model at work on one space.

    Attributes
    ----------
    space : ConfigSpace
    explorer, sampler, initialiser, cost_model
        The parts; see :mod:`tvm_ext.tuners.recipes`.
    seed : int
        The same seed and the same measurements give the same suggestions.
    batch : int
        Most configurations measured in one iteration.
    pool : int
        The explorer hands so many times the batch to the sampler.
    initial : int
        How many configurations are measured before the cost model is used.
    rescorer : Rescorer, optional
        Takes a second look at what the explorer found.
    peers : Peers, optional
        Tuners of other spaces, whose measurements a :class:`~tvm_ext.tuners.shared_model.SharedModel` learns from. It
        is used from the beginning then: ``initial`` does not count.
    validity : Validity, optional
        What is known of which configurations work, and an oracle to ask; without one, nothing is asked.
    validity_bonus : float
        Added to the predicted score of what is known to work, relative to the best score; what is known not to work is
        not looked at. None for neither.
    asks_first : bool
        Whether the oracle is asked for every configuration before it is suggested: what it says does not work is not
        measured.
    acquisition : str, optional
        A row of :data:`tvm_ext.tuners.acquisition.ACQUISITIONS`: by mean and spread of what models predict that learnt
        from samples of the measurements, it orders the candidates that the sampler chooses from. Without one the best
        predicted come first.
    model_seconds : float
        What training the cost model has taken.
    remarks : list of str
        What the run should say of how the tuner was made.
    random_share : float
        Each configuration of a batch is replaced by a random one with this probability (ε-greedy); with 1 nothing is
        learnt at all.
    refined_share : float
        This share of a batch is replaced by the best predicted of those configurations that differ in one knob from one
        of the best measured ones. The candidates of a search are the best predicted of all, and the model puts what is
        better than it can explain down to chance: a search may stay among thousands of equals, and pass over the
        surroundings of the fastest configuration it has measured.
    """

    space: ConfigSpace
    explorer: Explorer
    sampler: Sampler
    initialiser: Initialiser
    cost_model: CostModel
    seed: int = 0
    batch: int = 64
    initial: int = 64
    pool: int = 1
    random_share: float = 0.05
    refined_share: float = 0.0
    rescorer: Rescorer | None = None
    peers: Peers | None = None
    validity: Validity | None = None
    validity_bonus: float | None = None
    asks_first: bool = False
    acquisition: str | None = None
    measurements: list[Measurement] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)
    model_seconds: float = 0.0
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.space, ConfigSpace):
            raise TuningError(f"a tuner is made for a ConfigSpace, found {self.space!r}")
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise OptionError(f"seed of a tuner is {self.seed!r}; expected a whole number of 0 or more")
        self._rng = np.random.default_rng(self.seed)
        self._history = History()
        self._model_is_current = False
        self._learnt = 0
        self._asked_for_all = False
        self._table: ScoreTable | None = None
        self._members: tuple[tuple[int, int], Sequence[CostModel]] | None = None
        if self.acquisition is not None:
            check_acquisition(self.acquisition)
        if self.peers is not None:
            self.peers.join(self.space, self.measurements)

    def fit_budget(self, trials: int) -> None:
        """Make batches small enough for so many trials: the cost model is to have its say in most of them."""
        most = max(trials // FEWEST_BATCHES, LEAST_BATCH)
        self.initial, self.batch = min(self.initial, most), min(self.batch, most)

    def suggest(self, count: int) -> list[Vector]:
        """Propose at most ``count`` configurations that were not suggested before.

        Fewer come back when the sampler needs fewer; none when every configuration of the space was suggested.
        """
        if not isinstance(count, int | np.integer):
            raise OptionError(f"suggest was asked for {count!r} configurations; expected a whole number")
        if count < 1 or len(self._history.visited) >= self.space.size:
            return []
        missing = self.initial - len(self.measurements)
        if self._learn_from_peers():
            self._enumerate()
            vectors = self._default()
            if not len(vectors):
                vectors = self._explore(min(count, self.batch))
        elif missing > 0 or not any(row.score > 0 for row in self.measurements):
            vectors = self._first(min(count, missing) if missing > 0 else count)
        else:
            vectors = self._explore(min(count, self.batch))
        self._history.visited.update(self.space.keys(vectors))
        return [tuple(row) for row in vectors.tolist()]

    def update(self, results: Iterable[Measurement]) -> None:
        """Learn from measurements, of suggested configurations or of others.

        Raises
        ------
        TuningError
            If one is no measurement, or its configuration is not in the space.
        """
        for result in results if isinstance(results, Iterable) else [results]:
            if not isinstance(result, Measurement):
                raise TuningError(f"update was given {result!r}; expected Measurement(vector, seconds) of each")
            vector = self.space.check(result.vector)
            key = self.space.index(vector)
            self.measurements.append(Measurement(vector, result.seconds, result.error))
            self._history.visited.add(key)
            self._history.record(vector, result.score > 0)
            if self.validity is not None and (valid := result.is_valid) is not None:
                self.validity.record(key, valid)
            self._model_is_current = False

    @property
    def notes(self) -> list[str]:
        """What the run should say: why another tuner is used, or an oracle or a cost was not asked any more."""
        asked = [] if self.validity is None else self.validity.notes
        return [*self.remarks, *asked, *self.cost_model.notes]

    @property
    def best(self) -> Measurement | None:
        """The fastest configuration measured so far; None when none works."""
        return max((row for row in self.measurements if row.score > 0), key=lambda row: row.score, default=None)

    def _default(self) -> np.ndarray:
        """Give the configuration to start from, if there is one that was not suggested yet."""
        default = [] if self.space.default is None else [self.space.default]
        vectors = np.array(default, dtype=np.int64).reshape(-1, len(self.space.knobs))
        return unvisited(self.space, vectors, set(self._history.visited))

    def _enumerate(self) -> None:
        """Ask for everything where the initialiser would, which is not called when something is known beforehand."""
        if self._asked_for_all or self.validity is None or not self._asks:
            return
        if isinstance(self.initialiser, EnumeratingInitialiser):
            self.initialiser.enumerate(self.space, self.validity, self._rng)
        self._asked_for_all = True

    def _first(self, count: int) -> np.ndarray:
        vectors = self._default()
        taken = {*self._history.visited, *self.space.keys(vectors)}
        others = self.initialiser.propose(count - len(vectors), Start(self.space, taken, self._rng, self.validity))
        return np.concatenate([vectors, others])

    def _explore(self, count: int) -> np.ndarray:
        if self.random_share >= 1:
            return self._strangers(count, set(self._history.visited))
        self._fit()
        ranked = sorted(self.measurements, key=lambda row: -row.score)
        best = self._array([row for row in ranked if row.score > 0][: self.batch])
        pool = self.batch * self.pool * (1 if self.rescorer is None else self.rescorer.pool)
        pool *= ASKED if self._asks else 1
        pool *= ACQUIRED if self.acquisition is not None else 1
        exploration = self.explorer.explore(
            self.space,
            self._scorer(),
            pool,
            self._history.visited,
            best,
            self._rng,
        )
        self.effort.add(exploration)
        vectors, scores = exploration.vectors, exploration.scores
        if self.rescorer is not None:
            measured = [(row.vector, row.score) for row in self.measurements]
            vectors, scores = self.rescorer.best(self.space, measured, vectors, self.batch * self.pool)
        vectors, scores = self._working(vectors, scores)
        if self.acquisition is not None and len(vectors):
            order = ACQUISITIONS[self.acquisition](self.drawn(vectors), self._rng)[: self.batch * self.pool]
            vectors, scores = vectors[order], scores[order]
        chosen = self.sampler.sample(self.space, vectors, scores, count, self._history, self._rng)[:count]
        taken = set(self._history.visited)
        strangers = int(self._rng.binomial(len(chosen), self.random_share))
        refined = min(round(self.refined_share * len(chosen)), len(chosen) - strangers)
        chosen = unvisited(self.space, chosen[: len(chosen) - strangers - refined], taken)
        if refined and len(best):
            chosen = np.concatenate([chosen, self._refined(best[:INCUMBENTS], refined, taken)])
        missing = max(strangers, 1 - len(chosen))
        return np.concatenate([chosen, self._strangers(missing, taken)])

    def drawn(self, vectors: np.ndarray) -> np.ndarray:
        """Give what models predict that learnt from samples of the measurements (models x n), of vectors (n x knobs).

        Scores are relative to the best measured; their mean and their spread say what is known of a configuration.
        """
        known = len(self.measurements), self._learnt
        if self._members is None or self._members[0] != known:
            start = time.perf_counter()
            with said_by(self.cost_model):
                self._members = known, self.cost_model.resampled(*self.examples(self.space, self.measurements))
            self.model_seconds += time.perf_counter() - start
        with said_by(self.cost_model):
            features = self.cost_model.features(self.space, vectors)
            drawn = [numbers_for(member.predict(features), (len(vectors),)) for member in self._members[1]]
        return np.array(drawn, np.float64)

    def _scorer(self) -> Score:
        """Give what predicts the scores of vectors, with the bias that validity adds."""
        score = scorer_of(self.cost_model, self.space)
        biased = self.validity is not None and self.validity_bonus is not None
        # Not where a model schedules each configuration that it looks at: that takes milliseconds.
        if self.space.size <= TABULATED and not getattr(self.cost_model, "looks", False):
            self._table = self._table or ScoreTable(self.space)
            score = self._table.scorer(score, self.validity if biased else None)
        if self.validity is None or self.validity_bonus is None:
            return score
        return self.validity.biased(score, self.validity_bonus)

    def _working(self, vectors: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Leave out candidates of which the oracle says that they do not work."""
        works = self.validity.ask(vectors) if self._asks and self.validity is not None and len(vectors) else None
        return (vectors, scores) if works is None else (vectors[works], scores[works])

    @property
    def _asks(self) -> bool:
        return self.asks_first and self.validity is not None and self.validity.has_oracle

    def _strangers(self, count: int, taken: set[int]) -> np.ndarray:
        """Draw random configurations that are not in ``taken``, and add them; those that work if that can be asked."""
        if not self._asks or count < 1:
            return random_unvisited(self.space, count, taken, self._rng)
        drawn = random_unvisited(self.space, ASKED * count, set(taken), self._rng)
        working, _ = self._working(drawn, np.zeros(len(drawn)))
        if len(working) < count and self.validity is not None:  # what is known to work is seldom hit by chance
            known = [key for key in self.validity.known_to_work() if key not in taken]
            working = np.concatenate([working, self.space.vectors(self._rng.permutation(known).astype(np.int64))])
        return unvisited(self.space, (working if len(working) else drawn)[:count], taken)

    def _refined(self, incumbents: np.ndarray, count: int, taken: set[int]) -> np.ndarray:
        """Give the best predicted changes of single knobs that are not in ``taken``, and add them."""
        around = unvisited(self.space, self._rng.permutation(self.space.changes(incumbents)), set(taken))
        scores = scorer_of(self.cost_model, self.space)(around) if len(around) else np.empty(0)
        return unvisited(self.space, around[np.argsort(-scores, kind="stable")[:count]], taken)

    def _learn_from_peers(self) -> bool:
        """Train the prior of a shared model if there is more to learn from; tells whether something is known."""
        if not isinstance(self.cost_model, SharedModel):
            return False
        others = [] if self.peers is None else self.peers.others(self.space)
        count = sum(len(rows) for _, rows in others)
        if count >= LEAST_OF_PEERS and count >= GROWTH * self._learnt:
            start = time.perf_counter()
            self.cost_model.learn([self.examples(space, rows) for space, rows in others])
            self._learnt, self._model_is_current = count, False
            self.model_seconds += time.perf_counter() - start
        return self.cost_model.informed

    def examples(self, space: ConfigSpace, measurements: Sequence[Measurement]) -> tuple[np.ndarray, np.ndarray]:
        """Give what the cost model sees of measurements, and their scores."""
        return self.cost_model.features(space, self._array(measurements)), np.array([row.score for row in measurements])

    def _array(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Vectors of measurements (n x knobs)."""
        return np.array([row.vector for row in measurements], dtype=np.int64).reshape(-1, len(self.space.knobs))

    def _fit(self) -> None:
        if not self._model_is_current:
            start = time.perf_counter()
            with said_by(self.cost_model):
                self.cost_model.fit(*self.examples(self.space, self.measurements))
            self._model_is_current = True
            self.model_seconds += time.perf_counter() - start

    def dump(self) -> str:
        """Give the whole state as JSON; a tuner of the same parts that loads it goes on as this one would."""
        state = {
            "format": STATE_FORMAT,
            "space": self.space.signature(),
            "random": self._rng.bit_generator.state,
            "visited": sorted(self._history.visited),
            "measurements": [[list(row.vector), row.seconds, row.error] for row in self.measurements],
            "validity": None if self.validity is None else self.validity.dump(),
            "effort": asdict(self.effort),
            "explorer": self.explorer.dump(),
        }
        return json.dumps(state)

    def load(self, text: str) -> None:
        """Go on from what :meth:`dump` gave.

        Raises
        ------
        TuningError
            If the text is no such state, or one of another space.
        """
        try:
            state = json.loads(text)
            if state["format"] != STATE_FORMAT:
                raise TuningError(f"the tuner's state has format {state['format']}, expected {STATE_FORMAT}")
            if state["space"] != self.space.signature():
                raise TuningError(
                    f"the tuner's state is of a space with knobs {_spell(state['space'])}, "
                    f"this space has {_spell(self.space.signature())}"
                )
            measurements = [
                Measurement(tuple(vector), seconds, ErrorKind(error[0]) if error and error[0] else None)
                for vector, seconds, *error in state["measurements"]
            ]
            if self.validity is not None and state.get("validity") is not None:
                self.validity.load(state["validity"])
            self.measurements.clear()  # peers hold the list
            self._history = History(visited=set(state["visited"]))
            self.update(measurements)
            self._rng.bit_generator.state = state["random"]
            self.effort = Effort(**state["effort"])
            self.explorer.load(state["explorer"])
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise TuningError(
                f"the tuner's state is damaged ({type(error).__name__}: {error}); begin without it"
            ) from None


def _spell(signature: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{name} ({choices} choices)" for name, choices in signature)
