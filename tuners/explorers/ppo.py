"""Proximal policy optimisation of an actor and a critic with a shared first layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvm_ext.tuners.explorers.networks import Adam, Layers, log_softmax

# Not in the paper.
HIDDEN = 20
ACTIONS = 3


@dataclass(frozen=True)
class Hyperparameters:
    """Of proximal policy optimisation; defaults: table 9 of Ahn et al., "Chameleon", ICLR 2020.

    The size of a minibatch is not in the paper.
    """

    learning_rate: float = 1e-3
    discount: float = 0.9
    gae_parameter: float = 0.99
    epochs: int = 3
    clipping: float = 0.3
    value_coefficient: float = 1.0
    entropy_coefficient: float = 0.1
    minibatch: int = 512


@dataclass
class Rollout:
    """Steps of several episodes walked side by side, in the order they were made.

    Attributes
    ----------
    states, following : array
        Normalised configurations (steps × knobs) before and after each step.
    actions : array
        0 down, 1 stay, 2 up (steps × knobs).
    episodes : array
        Which episode a step belongs to (steps).
    ended : array
        Whether the step was the last of its episode (steps).
    rewards : array or None
        Reward of each step (steps), filled in after the walk.
    """

    states: np.ndarray
    actions: np.ndarray
    following: np.ndarray
    episodes: np.ndarray
    ended: np.ndarray
    rewards: np.ndarray | None = None


class Agent:
    """Policy and value networks of ``knobs`` inputs and three actions a knob.

    Both begin with the same layer of 20; the policy has one more, the value two. Arrays have one column an example.

    Parameters
    ----------
    knobs, seed : int
    hyperparameters : Hyperparameters, optional
    """

    def __init__(self, knobs: int, seed: int, hyperparameters: Hyperparameters | None = None) -> None:
        self.knobs, self.seed = knobs, seed
        self.hyperparameters = hyperparameters or Hyperparameters()
        # Name, inputs, outputs, gain of the first weights: the first policy is nearly uniform.
        shapes = (
            ("shared", knobs, HIDDEN, 1.0),
            ("policy", HIDDEN, HIDDEN, 1.0),
            ("logits", HIDDEN, knobs * ACTIONS, 0.1),
            ("value1", HIDDEN, HIDDEN, 1.0),
            ("value2", HIDDEN, HIDDEN, 1.0),
            ("value", HIDDEN, 1, 1.0),
        )
        self.layers = Layers.random(shapes, np.random.default_rng(seed))
        self._optimizer = Adam(self.layers.flat.size, self.hyperparameters.learning_rate)

    def act(self, states: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Draw a direction, -1, 0 or 1, for each knob of each state.

        Parameters
        ----------
        states : array
            Knobs × n.
        noise : array
            Standard Gumbel numbers (3 × knobs × n): the action whose logit plus noise is the largest is drawn.
        """
        logits = self._logits(np.tanh(self.layers.apply("shared", states)))[1] + noise
        down, stay, up = logits
        rest = np.maximum(down, stay)
        return (up > rest).astype(np.int64) - ((down > stay) & (down >= up))

    def values(self, states: np.ndarray) -> np.ndarray:
        """Value (n) of states (knobs × n)."""
        return self._value(np.tanh(self.layers.apply("shared", states)))[2]

    def update(self, rollout: Rollout, rng: np.random.Generator) -> None:
        """Improve policy and value on what was walked: the clipped objective summed over knobs, plus entropy."""
        states, actions = np.ascontiguousarray(rollout.states.T), np.ascontiguousarray(rollout.actions.T)
        following = np.ascontiguousarray(rollout.following.T)
        advantages, targets = generalized_advantages(
            rollout, self.values(states), self.values(following), self.hyperparameters
        )
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        old = self.log_probabilities(states, actions)
        size = self.hyperparameters.minibatch
        for _ in range(self.hyperparameters.epochs):
            order = rng.permutation(len(targets))
            columns = [array[..., order] for array in (states, actions, old, advantages, targets)]
            for start in range(0, len(order), size):
                _, gradient = self.loss(*(column[..., start : start + size] for column in columns))
                self._optimizer.step(self.layers.flat, gradient)

    def log_probabilities(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Log-probability (knobs × n) of each action (knobs × n) in its state (knobs × n)."""
        logs = log_softmax(self._logits(np.tanh(self.layers.apply("shared", states)))[1])
        return np.take_along_axis(logs, actions[None], axis=0)[0]

    def loss(
        self, states: np.ndarray, actions: np.ndarray, old: np.ndarray, advantages: np.ndarray, targets: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Loss of a minibatch, and its gradient in the order of the layers' numbers.

        ``mean_n (c1 (V - target)² - Σ_knobs (min(ρ A, clip(ρ, 1 ± ε) A) + c2 H))``

        Parameters
        ----------
        states, actions, old : array
            Knobs × n; ``old`` are the log-probabilities of the actions when they were drawn.
        advantages, targets : array
            n.

        References
        ----------
        Schulman et al., "Proximal Policy Optimization Algorithms", 2017, eq. 7 and 9.
        """
        settings, count = self.hyperparameters, len(targets)
        shared = np.tanh(self.layers.apply("shared", states))
        policy, logits = self._logits(shared)
        first, second, value = self._value(shared)

        logs = log_softmax(logits)
        probabilities = np.exp(logs)
        entropy = -(probabilities * logs).sum(axis=0)
        taken = np.arange(ACTIONS)[:, None, None] == actions
        ratio = np.exp((logs * taken).sum(axis=0) - old)
        free = ratio * advantages
        clipped = np.clip(ratio, 1 - settings.clipping, 1 + settings.clipping) * advantages
        objective = (np.minimum(free, clipped) + settings.entropy_coefficient * entropy).sum() / count
        missed = value - targets
        loss = float(settings.value_coefficient * (missed @ missed) / count - objective)

        # Where the clipped term is the smaller one it is constant.
        by_log = np.where(free <= clipped, free, 0.0)
        by_logits = by_log * (taken - probabilities)
        by_logits -= settings.entropy_coefficient * probabilities * (logs + entropy)
        by_logits = (by_logits * np.float32(-1 / count)).reshape(-1, count)
        by_value = (2 * settings.value_coefficient / count * missed)[None].astype(np.float32)

        gradient = self.layers.like()
        by_policy = gradient.backward("logits", self.layers, policy, by_logits) * (1 - policy**2)
        by_second = gradient.backward("value", self.layers, second, by_value) * (1 - second**2)
        by_first = gradient.backward("value2", self.layers, first, by_second) * (1 - first**2)
        by_shared = gradient.backward("policy", self.layers, shared, by_policy)
        by_shared += gradient.backward("value1", self.layers, shared, by_first)
        gradient.backward("shared", self.layers, states, by_shared * (1 - shared**2))
        return loss, gradient.flat

    def _logits(self, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hidden layer of the policy (20 × n), and logits (3 × knobs × n)."""
        policy = np.tanh(self.layers.apply("policy", shared))
        return policy, self.layers.apply("logits", policy).reshape(ACTIONS, self.knobs, -1)

    def _value(self, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hidden layers of the value (20 × n each), and values (n)."""
        first = np.tanh(self.layers.apply("value1", shared))
        second = np.tanh(self.layers.apply("value2", first))
        return first, second, self.layers.apply("value", second)[0]

    def dump(self) -> dict[str, Any]:
        """Give weights and optimiser state as JSON values."""
        return {
            "knobs": self.knobs,
            "seed": self.seed,
            "hyperparameters": asdict(self.hyperparameters),
            "weights": self.layers.flat.tolist(),
            "optimizer": self._optimizer.dump(),
        }

    @classmethod
    def from_dump(cls, state: dict[str, Any]) -> Agent:
        """Make the agent that :meth:`dump` described."""
        agent = cls(state["knobs"], state["seed"], Hyperparameters(**state["hyperparameters"]))
        agent.layers.flat[:] = state["weights"]
        agent._optimizer.load(state["optimizer"])
        return agent


def generalized_advantages(
    rollout: Rollout, values: np.ndarray, next_values: np.ndarray, hyperparameters: Hyperparameters
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and value targets of every step.

    ``δ_t = r_t + γ V_{t+1} − V_t`` with V = 0 after the last step, ``A_t = δ_t + γλ A_{t+1}``; the target is
    ``r_t + γ V_{t+1}``.

    References
    ----------
    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", ICLR 2016, eq. 16.
    """
    if rollout.rewards is None:
        raise ValueError("the rollout has no rewards yet")
    discount = hyperparameters.discount
    goes_on = (~rollout.ended).astype(np.float32)
    targets = (rollout.rewards + discount * goes_on * next_values).astype(np.float32)
    deltas = targets - values
    decay = np.float32(discount * hyperparameters.gae_parameter) * goes_on
    running = np.zeros(int(rollout.episodes.max()) + 1, dtype=np.float32)
    advantages = np.empty_like(deltas)
    # Backwards in slices of steps made at the same time: within a slice no episode comes twice.
    bounds = [0, *(np.nonzero(np.diff(rollout.episodes) <= 0)[0] + 1).tolist(), len(deltas)]
    for start, end in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
        owners = rollout.episodes[start:end]
        advantages[start:end] = running[owners] = deltas[start:end] + decay[start:end] * running[owners]
    return advantages, targets
