"""Scoring and updating, compiled: every `jax.jit` of training, with its shardings and donations, stands here.

An optimizer step is: `zero_gradients`, `accumulate` once per micro-batch, `apply`. Each micro-batch adds its share of
sum/denominator, where the denominator counts the whole mini-batch, so the result does not depend on how it was cut.

Dimension key: B rows, N lanes of a row, T positions of a lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.objectives.divergence import KL_ESTIMATORS
from fr3e_jax.objectives.entropy import branching_factor, token_entropy, token_logprobs
from fr3e_jax.objectives.losses import clipped_surrogate, entropy_bonus, truncated_importance_weight
from fr3e_jax.objectives.reductions import masked_sum
from fr3e_jax.objectives.selection import kl_cov_losses
from fr3e_jax.objectives.shaping import entropy_based_advantages
from fr3e_jax.policy.head import Head, count_tokens, gather_tokens, token_loss, token_scores
from fr3e_jax.policy.network import WHOLE, Params, Pass, bind
from fr3e_jax.policy.rows import Rows, predictors, row_states
from fr3e_jax.programs.mesh import batch_sharding, batch_shards, like_params, placement, replicated
from fr3e_jax.programs.placement import on_mesh


class TrainRows(NamedTuple):
    """Rows and what the objective says of each branch token; all but ``rows`` are ``[B, N, T]``."""

    rows: Rows
    loss_mask: jax.Array  # bool
    weights: jax.Array  # float32, weight of the token in the aggregated sum
    advantages: jax.Array  # float32
    old_logprobs: jax.Array  # float32, of the policy at the start of the full batch
    sampler_logprobs: jax.Array  # float32, as the decoder reported them
    reference_logprobs: jax.Array | None = None  # float32, of the reference policy, where the loss has a KL term
    sequence_log_ratios: jax.Array | None = None  # float32, mean log-ratio of the token's sequence, where GSPO reads it
    penalised: jax.Array | None = None  # bool, tokens that pay the penalty of KL-Cov


@dataclass(frozen=True)
class LossSettings:
    """What the policy loss is made of; see `fr3e_jax.configuration.schema.LossConfig`."""

    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    dual_clip: float = 0.0
    importance_cap: float = 0.0
    entropy_coefficient: float = 0.0
    sequence_ratio: bool = False  # GSPO: one ratio for a sequence, from `TrainRows.sequence_log_ratios`
    kl_coefficient: float = 0.0  # of a term against `TrainRows.reference_logprobs`
    kl_estimator: str = "k3"
    entropy_advantage: tuple[float, float] | None = None  # (alpha, kappa) of RwE's bonus on the advantages
    covariance_penalty: float | None = None  # KL-Cov: unclipped, and this times |log-ratio| where ``penalised``


@dataclass(frozen=True)
class Layout:
    """How a pass is cut: ``chunk`` tokens of each of ``shards`` groups of rows share one logits array."""

    chunk: int = 1024
    shards: int = 1
    passing: Pass = WHOLE


def _scores(logits: jax.Array, token_ids: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    return token_logprobs(logits / temperature, token_ids), token_entropy(logits)


def _head(graphdef, params, rows: Rows, mask, layout: Layout):
    """Head, hidden states and the tokens of ``mask``, which the head is applied to."""
    states = row_states(graphdef, params, rows, layout.passing)
    tokens = mask.reshape(mask.shape[0], -1)
    counted = count_tokens(tokens, predictors(rows), states.shape[1], shards=layout.shards, chunk=layout.chunk)
    weight, tied = bind(graphdef, params).output_weight()
    return Head(layout.passing.place.head(weight, 0 if tied else 1), tied), states, counted


def score(graphdef, params, rows: Rows, temperature, *, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """Log-probs (at ``temperature``) and entropies (nats, at temperature 1) of the branch tokens, ``[B, N, T]``.

    0 on padding.
    """
    head, states, counted = _head(graphdef, params, rows, rows.segment > 0, layout)
    scores = lambda logits, ids: _scores(logits, ids, temperature)
    return token_scores(head, states, counted, rows.branch_ids, scores, chunk=layout.chunk)


def branching(graphdef, params, rows: Rows, *, layout: Layout) -> jax.Array:
    """Rollout branching factors (at temperature 1, mass 0.95) where the branch tokens were drawn, ``[B, N, T]``.

    Float; 0 on padding. (STUDY, section 2.2.)
    """
    head, states, counted = _head(graphdef, params, rows, rows.segment > 0, layout)

    def scores(logits, ids):
        factors = branching_factor(logits).astype(jnp.float32)
        return factors, factors

    return token_scores(head, states, counted, rows.branch_ids, scores, chunk=layout.chunk)[0]


def policy_token_losses(batch: TrainRows, logprobs, entropies, settings: LossSettings):
    """Token losses of the clipped surrogate with its options, and sums over loss tokens for the metrics."""
    mask, advantages, shaping = batch.loss_mask, batch.advantages, {}
    if settings.entropy_advantage:
        alpha, kappa = settings.entropy_advantage
        advantages, ratio = entropy_based_advantages(advantages, entropies, mask, alpha=alpha, kappa=kappa)
        shaping["entropy_advantage"] = ratio
    losses, stats = clipped_surrogate(
        _ratio_logprobs(batch, logprobs, settings),
        batch.old_logprobs,
        advantages,
        mask,
        epsilon_low=settings.epsilon_low,
        epsilon_high=settings.epsilon_high,
        dual_clip=settings.dual_clip,
    )
    if settings.covariance_penalty is not None:
        losses = kl_cov_losses(
            logprobs, batch.old_logprobs, advantages, mask, batch.penalised, coefficient=settings.covariance_penalty
        )
        stats = {"ratio": stats["ratio"]}
    if settings.importance_cap:
        losses = losses * truncated_importance_weight(
            jnp.where(mask, batch.old_logprobs, 0.0),
            jnp.where(mask, batch.sampler_logprobs, 0.0),
            settings.importance_cap,
        )
    if settings.kl_coefficient:
        reference = jnp.where(mask, batch.reference_logprobs, 0.0)
        divergence = KL_ESTIMATORS[settings.kl_estimator](jnp.where(mask, logprobs, 0.0), reference)
        losses = losses + settings.kl_coefficient * divergence
        stats["kl"] = jax.lax.stop_gradient(divergence)
    if settings.entropy_coefficient:
        losses = losses + entropy_bonus(entropies, mask, coefficient=settings.entropy_coefficient)
    values = stats | shaping | {"entropy": entropies}
    return losses, {name: masked_sum(value, mask) for name, value in values.items()}


def _ratio_logprobs(batch: TrainRows, logprobs, settings: LossSettings):
    """Log-probs whose ratio to the old ones is the policy ratio.

    GSPO's is that of the whole sequence, (π(o) / π_old(o))^(1/|o|), with the gradient of its own token: summed over a
    sequence of equal advantages it is the gradient of GSPO. (Zheng et al. 2025, GSPO-token, eq. 13-17.)
    """
    if not settings.sequence_ratio:
        return logprobs
    return batch.old_logprobs + batch.sequence_log_ratios + logprobs - jax.lax.stop_gradient(logprobs)


def supervised_token_losses(batch: TrainRows, logprobs, entropies, settings: None):
    """Cross-entropy -log pi(o_t) of demonstrations."""
    return -logprobs, {"entropy": masked_sum(entropies, batch.loss_mask)}


def _accumulate(
    graphdef, token_losses, settings, layout, params, gradients, batch: TrainRows, denominator, temperature
):
    def chunk_loss(logits, valid, tokens, scalars):
        ids, piece = tokens
        logprobs, entropies = _scores(logits, ids, scalars[1])
        piece = piece._replace(loss_mask=valid)
        losses, sums = token_losses(piece, logprobs, entropies, settings)
        total = masked_sum(losses * piece.weights, valid) / scalars[0]
        return total, sums | {"loss": total}

    def loss(params):
        head, states, counted = _head(graphdef, params, batch.rows, batch.loss_mask, layout)
        tokens = gather_tokens(counted, (batch.rows.branch_ids, batch._replace(rows=None)))
        options = {"chunk": layout.chunk, "place": layout.passing.place.by_shard}
        return token_loss(head, states, counted, tokens, (denominator, temperature), chunk_loss, **options)

    fresh, sums = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(jnp.add, gradients, fresh), sums


def apply_gradients(optimizer: optax.GradientTransformation, params, optimizer_state, gradients):
    """New parameters, new optimizer state, and the global norm of ``gradients`` before any clipping."""
    norm = optax.tree.norm(gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, updates), optimizer_state, norm


class TrainPrograms:
    """Compiled training programs for one network, optimizer and mesh."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        abstract_params: Any,
        shardings: Any,
        mesh: Mesh,
        optimizer: optax.GradientTransformation,
        *,
        loss: LossSettings | None,
        token_chunk: int = 1024,
        passing: Pass = WHOLE,
    ):
        """``loss``: the policy loss, None for supervised fine-tuning; ``token_chunk`` and ``passing``: see `Layout`."""
        self.shards, self._rows = batch_shards(mesh), batch_sharding(mesh)
        whole = replicated(mesh)
        layout = Layout(token_chunk, self.shards, replace(passing, place=placement(mesh)))
        token_losses = supervised_token_losses if loss is None else policy_token_losses
        abstract_state = jax.eval_shape(optimizer.init, abstract_params)
        self.param_shardings = shardings
        self.optimizer_shardings = like_params(mesh, abstract_state, abstract_params, shardings)
        self.abstract_state = {"params": abstract_params, "optimizer": abstract_state}
        self.init_optimizer = jax.jit(optimizer.init, out_shardings=self.optimizer_shardings)
        self.zero_gradients = jax.jit(partial(jax.tree.map, jnp.zeros_like), out_shardings=shardings)
        self._score = jax.jit(partial(score, graphdef, layout=layout), out_shardings=(whole, whole))
        self._branching = jax.jit(partial(branching, graphdef, layout=layout), out_shardings=whole)
        self._accumulate = jax.jit(
            partial(_accumulate, graphdef, token_losses, loss, layout),
            donate_argnums=1,
            out_shardings=(shardings, whole),
        )
        self._apply = jax.jit(
            partial(apply_gradients, optimizer),
            donate_argnums=(0, 1),
            out_shardings=(shardings, self.optimizer_shardings, whole),
        )

    def jitted(self) -> dict[str, Callable]:
        """The programs by name, to lower without running them (`fr3e_jax.planning`)."""
        return {"score": self._score, "accumulate": self._accumulate, "apply": self._apply}

    def abstract_arrays(self) -> dict[str, Any]:
        """Abstract parameters and optimizer state with their shardings, to restore a checkpoint into."""
        shardings = {"params": self.param_shardings, "optimizer": self.optimizer_shardings}
        sharded = lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s)
        return jax.tree.map(sharded, self.abstract_state, shardings)

    def place(self, batch: Any) -> Any:
        """Host arrays of rows onto the mesh; the number of rows must be a multiple of the batch shards."""
        return on_mesh(batch, self._rows)

    def score(self, params: Params, rows: Rows, temperature: float) -> tuple[jax.Array, jax.Array]:
        """`score`; returns while it runs."""
        return self._score(params, self.place(rows), jnp.float32(temperature))

    def branching(self, params: Params, rows: Rows) -> np.ndarray:
        """`branching`, fetched to the host."""
        return jax.device_get(self._branching(params, self.place(rows)))

    def accumulate(self, params, gradients, batch: TrainRows, denominator: float, temperature: float):
        """Add one micro-batch's gradient; returns the gradients (donated) and device sums for the metrics."""
        return self._accumulate(
            params, gradients, self.place(batch), jnp.float32(denominator), jnp.float32(temperature)
        )

    def apply(self, params, optimizer_state, gradients):
        """One optimizer step; parameters and state are donated. Returns parameters, state and the gradient norm."""
        return self._apply(params, optimizer_state, gradients)


def param_placement(mesh: Mesh, params: Any, shardings: Any) -> Any:
    """Put host or single-device parameters onto the mesh."""
    return jax.tree.map(on_mesh, params, shardings)


def make_optimizer(
    *,
    learning_rate: float,
    schedule: str,
    warmup_updates: int,
    decay_updates: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    max_grad_norm: float,
) -> optax.GradientTransformation:
    """AdamW with a warm-up, decay of matrices only, and clipping by the global norm (0: none)."""
    if schedule == "constant":
        rate = optax.linear_schedule(0.0, learning_rate, warmup_updates) if warmup_updates else learning_rate
    else:
        decay = {"linear": optax.linear_schedule, "cosine": lambda peak, _, n: optax.cosine_decay_schedule(peak, n)}
        after = decay[schedule](learning_rate, 0.0, max(decay_updates - warmup_updates, 1))
        warmup = optax.linear_schedule(0.0, learning_rate, max(warmup_updates, 1))
        rate = optax.join_schedules([warmup, after], [warmup_updates]) if warmup_updates else after
    matrices = partial(jax.tree.map, lambda leaf: leaf.ndim >= 2)
    adamw = optax.adamw(rate, b1=beta1, b2=beta2, eps=epsilon, weight_decay=weight_decay, mask=matrices)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), adamw) if max_grad_norm else adamw
