"""Proximal policy optimisation of an actor and a critic with a shared first layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.errors import MissingPackageError

# Table 9 of Ahn et al., "Chameleon", ICLR 2020.
LEARNING_RATE = 1e-3
DISCOUNT = 0.9
GAE_PARAMETER = 0.99
EPOCHS = 3
CLIPPING = 0.3
VALUE_COEFFICIENT = 1.0
ENTROPY_COEFFICIENT = 0.1

# Not in the paper.
HIDDEN = 20
ACTIONS = 3
MINIBATCH = 512
ADAM_EPSILON = 1e-5


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

    Raises
    ------
    MissingPackageError
        If PyTorch is not installed.
    """

    def __init__(self, knobs: int, seed: int) -> None:
        try:
            import torch
        except ImportError:
            raise MissingPackageError(
                "the reinforcement-learning explorer needs PyTorch: pip install torch, or use the recipe 'sa_as'"
            ) from None
        self.knobs, self.seed = knobs, seed
        generator = torch.Generator().manual_seed(seed)

        def linear(inputs: int, outputs: int, gain: float = 1.0) -> Any:
            layer = torch.nn.Linear(inputs, outputs)
            with torch.no_grad():
                layer.weight.normal_(0.0, gain / inputs**0.5, generator=generator)
                layer.bias.zero_()
            return layer

        self._layers = torch.nn.ModuleDict(
            {
                "shared": linear(knobs, HIDDEN),
                "policy": linear(HIDDEN, HIDDEN),
                "logits": linear(HIDDEN, knobs * ACTIONS, gain=0.1),
                "value1": linear(HIDDEN, HIDDEN),
                "value2": linear(HIDDEN, HIDDEN),
                "value": linear(HIDDEN, 1),
            }
        )
        self._optimizer = torch.optim.Adam(self._layers.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON)
        self._copy_weights()

    def act(self, states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw an action (n × knobs) for each state (n × knobs); numpy, since it is called for every step."""
        hidden = np.tanh(states @ self._weights["shared"][0] + self._weights["shared"][1])
        hidden = np.tanh(hidden @ self._weights["policy"][0] + self._weights["policy"][1])
        logits = hidden @ self._weights["logits"][0] + self._weights["logits"][1]
        noise = rng.gumbel(size=logits.shape)
        return (logits + noise).reshape(len(states), self.knobs, ACTIONS).argmax(axis=2)

    def update(self, rollout: Rollout, rng: np.random.Generator) -> None:
        """Improve policy and value on what was walked: the clipped objective summed over knobs, plus entropy."""
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the layers are so small that threads would only wait for one another
        try:
            self._update(rollout, rng)
        finally:
            torch.set_num_threads(threads)

    def _update(self, rollout: Rollout, rng: np.random.Generator) -> None:
        import torch

        states, following = torch.from_numpy(rollout.states), torch.from_numpy(rollout.following)
        actions = torch.from_numpy(rollout.actions)
        with torch.no_grad():
            old_log_probabilities, _, values = self._evaluate(states, actions)
            next_values = self._evaluate(following, actions)[2]
        advantages, targets = generalized_advantages(rollout, values.numpy(), next_values.numpy())
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        advantage, target = torch.from_numpy(advantages), torch.from_numpy(targets)
        steps = len(actions)
        for _ in range(EPOCHS):
            order = torch.from_numpy(rng.permutation(steps))
            for rows in order.split(MINIBATCH):
                log_probabilities, entropy, value = self._evaluate(states[rows], actions[rows])
                ratio = (log_probabilities - old_log_probabilities[rows]).exp()
                gain = advantage[rows, None]
                surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - CLIPPING, 1 + CLIPPING) * gain)
                objective = (surrogate + ENTROPY_COEFFICIENT * entropy).sum(dim=1).mean()
                loss = VALUE_COEFFICIENT * (value - target[rows]).square().mean() - objective
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()
        self._copy_weights()

    def _evaluate(self, states: Any, actions: Any) -> tuple[Any, Any, Any]:
        """Log-probability of the actions and entropy (n × knobs), and value (n)."""
        import torch

        shared = torch.tanh(self._layers["shared"](states))
        logits = self._layers["logits"](torch.tanh(self._layers["policy"](shared)))
        logs = torch.log_softmax(logits.reshape(len(states), self.knobs, ACTIONS), dim=2)
        hidden = torch.tanh(self._layers["value2"](torch.tanh(self._layers["value1"](shared))))
        chosen = logs.gather(2, actions[:, :, None])[:, :, 0]
        return chosen, -(logs.exp() * logs).sum(dim=2), self._layers["value"](hidden)[:, 0]

    def _copy_weights(self) -> None:
        self._weights = {
            name: (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
            for name, layer in self._layers.items()
        }

    def dump(self) -> dict[str, Any]:
        """Give weights and optimiser state as JSON values."""
        moments = self._optimizer.state_dict()["state"]
        return {
            "knobs": self.knobs,
            "seed": self.seed,
            "weights": {name: value.tolist() for name, value in self._layers.state_dict().items()},
            "moments": {
                str(index): {name: value.tolist() for name, value in row.items()} for index, row in moments.items()
            },
        }

    @classmethod
    def from_dump(cls, state: dict[str, Any]) -> Agent:
        """Make the agent that :meth:`dump` described."""
        import torch

        agent = cls(state["knobs"], state["seed"])
        agent._layers.load_state_dict({name: torch.tensor(value) for name, value in state["weights"].items()})
        optimizer = agent._optimizer.state_dict()
        optimizer["state"] = {
            int(index): {name: torch.tensor(value) for name, value in row.items()}
            for index, row in state["moments"].items()
        }
        agent._optimizer.load_state_dict(optimizer)
        agent._copy_weights()
        return agent


def generalized_advantages(
    rollout: Rollout, values: np.ndarray, next_values: np.ndarray
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
    targets = (rollout.rewards + DISCOUNT * np.where(rollout.ended, 0.0, next_values)).astype(np.float32)
    deltas = targets - values
    running = np.zeros(int(rollout.episodes.max()) + 1, dtype=np.float32)
    advantages = np.empty_like(deltas)
    # Backwards in slices of steps made at the same time: within a slice no episode comes twice.
    bounds = np.nonzero(np.diff(rollout.episodes) <= 0)[0] + 1
    for rows in reversed(np.split(np.arange(len(deltas)), bounds)):
        owners = rollout.episodes[rows]
        running[owners] = deltas[rows] + DISCOUNT * GAE_PARAMETER * np.where(rollout.ended[rows], 0.0, running[owners])
        advantages[rows] = running[owners]
    return advantages, targets
