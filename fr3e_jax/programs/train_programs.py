"""The policy's training programs: scores of trunk-and-branch rows, and the gradient of the policy loss.

`optimizer_programs` has the optimizer step around them, and explains how programs are declared. Each micro-batch adds
its share of sum/denominator. The denominator counts the whole mini-batch, so the result does not depend on the cut.

Dimension key: B rows, N lanes of a row, T positions of a lane, P = S + N·T positions of a row, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.objectives.distillation import distillation_divergence
from fr3e_jax.objectives.divergence import KL_ESTIMATORS, bounded_log_ratio
from fr3e_jax.objectives.losses import clipped_surrogate, entropy_bonus, truncated_importance_weight
from fr3e_jax.objectives.reductions import masked_sum
from fr3e_jax.objectives.selection import kl_cov_losses
from fr3e_jax.objectives.shaping import entropy_based_advantages
from fr3e_jax.objectives.user_objectives import UserObjective
from fr3e_jax.policy.head import gather_tokens, scatter_tokens, token_loss
from fr3e_jax.policy.lora import Adapted, relative_change, trained, with_trained
from fr3e_jax.policy.network import DEFAULT_OPTIONS, ForwardOptions, Params
from fr3e_jax.policy.router_sums import Balance, balance_loss, count_routes, router_metrics
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.frozen_base import FrozenBase, merged_as_stored
from fr3e_jax.programs.frozen_teacher import FrozenTeacher, Taught
from fr3e_jax.programs.mesh import batch_shards
from fr3e_jax.programs.optimizer_programs import OptimizerPrograms
from fr3e_jax.programs.program import Declarations, Program, abstract
from fr3e_jax.programs.replicas import REPLICA, sum_of_all
from fr3e_jax.programs.row_scorer import RowScorer, logprobs_and_entropies
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.shardings import mesh_layout, replicated


class RecordedRoutes(NamedTuple):
    """Experts that are recorded for each token: how many, and the type of their numbers."""

    count: int
    dtype: Any


class TrainRows(NamedTuple):
    """Rows and the loss's inputs for each branch token; all but ``rows`` are ``[B, N, T]``."""

    rows: Rows
    loss_mask: jax.Array  # bool
    weights: jax.Array  # float32, weight of the token in the aggregated sum
    advantages: jax.Array  # float32
    old_logprobs: jax.Array  # float32, of the policy at the start of the full batch; the pass may have them itself
    sampler_logprobs: jax.Array  # float32, as the decoder reported them
    reference_logprobs: jax.Array | None = None  # float32, of the reference policy, where the loss has a KL term
    sequence_log_ratios: jax.Array | None = None  # float32, mean log-ratio of the token's sequence, where GSPO reads it
    sequence_sampler_gaps: jax.Array | None = (
        None  # float32, the same of old to sampler, where the user's loss reads it
    )
    penalised: jax.Array | None = None  # bool, tokens that pay the penalty of KL-Cov
    taught: jax.Array | None = None  # bool, tokens at which the teacher speaks, where the loss has its term; None: all


@dataclass(frozen=True)
class LossSettings:
    """Settings of the policy loss; see `fr3e_jax.configuration.schema.LossConfig`."""

    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    dual_clip: float = 0.0
    importance_cap: float = 0.0
    entropy_coefficient: float = 0.0
    sequence_ratio: bool = False  # GSPO: one ratio for a sequence, from `TrainRows.sequence_log_ratios`
    kl_coefficient: float = 0.0  # of a KL term against `TrainRows.reference_logprobs`
    kl_estimator: str = "k3"
    entropy_advantage: tuple[float, float] | None = None  # (alpha, kappa) of Cheng et al.'s bonus on the advantages
    covariance_penalty: float | None = None  # KL-Cov: unclipped, and this times |log-ratio| where ``penalised``
    teacher_weight: float = 0.0  # of the divergence from the teacher over the vocabulary
    teacher_beta: float = 1.0  # its kind, see `distillation_divergence`
    teacher_selects: bool = False  # the teacher speaks where `TrainRows.taught` says
    function: UserObjective | None = None  # the user's own, in place of the clipped surrogate

    @property
    def sequence_fields(self) -> tuple[str, ...]:
        """The fields of `TrainRows` with a number for each sequence that this loss reads."""
        read = () if self.function is None else self.function.fields
        return tuple(
            name
            for name in ("sequence_log_ratios", "sequence_sampler_gaps")
            if name in read or (self.sequence_ratio and name == "sequence_log_ratios")
        )


def policy_token_losses(batch: TrainRows, logprobs, entropies, settings: LossSettings):
    """Token losses of the clipped surrogate with its options, and sums over loss tokens for the metrics."""
    mask, advantages, shaping = batch.loss_mask, batch.advantages, {}
    if settings.entropy_advantage:
        alpha, kappa = settings.entropy_advantage
        advantages, ratio = entropy_based_advantages(advantages, entropies, mask, alpha=alpha, kappa=kappa)
        shaping["entropy_advantage"] = ratio
    if settings.function is not None:
        losses, stats = _user_losses(batch._replace(advantages=advantages), logprobs, entropies, settings.function)
    else:
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


def _with_teacher(batch: TrainRows, losses, logits, teacher_logits, settings: LossSettings):
    """Token losses with the teacher's term, and sums for the metrics; all logits are at the training temperature."""
    mask = batch.loss_mask
    speaks = mask & batch.taught if settings.teacher_selects else mask
    divergence = distillation_divergence(logits, teacher_logits, beta=settings.teacher_beta)
    reverse = divergence if settings.teacher_beta == 1.0 else distillation_divergence(logits, teacher_logits, beta=1.0)
    values = {"teacher_kl": reverse, "taught": speaks.astype(jnp.float32)}
    sums = {name: masked_sum(jax.lax.stop_gradient(value), mask) for name, value in values.items()}
    return losses + settings.teacher_weight * jnp.where(speaks, divergence, 0.0), sums


def _user_losses(batch: TrainRows, logprobs, entropies, function: UserObjective):
    """The user's token losses, 0 outside of the mask, and statistics: the policy ratio and the user's own."""
    mask, scores = batch.loss_mask, {"logprobs": logprobs, "entropies": entropies}
    fields = {name: scores[name] if name in scores else getattr(batch, name) for name in function.fields}
    fields |= {"logprobs": logprobs, "old_logprobs": batch.old_logprobs}
    values = {name: jnp.where(mask, value, 0.0) for name, value in fields.items()}
    losses, statistics = function.token_losses(values)
    ratio = jnp.exp(bounded_log_ratio(values["logprobs"], values["old_logprobs"]))
    named = {f"loss/{name}": value for name, value in statistics.items()}
    return jnp.where(mask, losses, 0.0), jax.lax.stop_gradient(named | {"ratio": ratio})


def _ratio_logprobs(batch: TrainRows, logprobs, settings: LossSettings):
    """Log-probs whose ratio to the old ones is the policy ratio.

    GSPO's ratio is that of the whole sequence, (π(o) / π_old(o))^(1/|o|), with the gradient of the token itself. Summed
    over a sequence of equal advantages this is the gradient of GSPO. (Zheng et al. 2025, GSPO-token, eq. 13-17.)
    """
    if not settings.sequence_ratio:
        return logprobs
    return batch.old_logprobs + batch.sequence_log_ratios + logprobs - jax.lax.stop_gradient(logprobs)


def supervised_token_losses(batch: TrainRows, logprobs, entropies, settings: None):
    """Cross-entropy −log π(o_t) of demonstrations."""
    return -logprobs, {"entropy": masked_sum(entropies, batch.loss_mask)}


def _accumulate(
    scorer: RowScorer,
    token_losses: Callable,
    settings: LossSettings | None,
    teacher: RowScorer | None,
    params,
    gradients,
    batch: TrainRows,
    denominator: jax.Array,
    temperature: jax.Array,
    at_start: jax.Array | None = None,
    balance: Balance | None = None,
):
    """``gradients`` plus those of a micro-batch's share of the loss, and sums over its tokens for the metrics.

    They are the gradients of the trained parameters; no gradient of a frozen base is computed.

    ``at_start``: nonzero where no update has passed since the start of the full batch. The log-probs of this pass are
    then the old ones, whatever the batch holds, so that every ratio is 1. With it, zero or not, the sums hold
    ``logprobs [B, N, T]``, too (0 where nothing trains).

    Of a network with experts they hold `router_metrics`. With ``balance`` its loss is minimised, too, and they hold it
    as ``balance``, without its coefficient; ``loss`` leaves it out.

    With a ``teacher``, ``params`` are `Taught`. Its states are computed here, and its logits exist a chunk at a time,
    beside those of the policy.
    """
    spoken, teacher_logits = (), None
    if teacher is not None:
        params, frozen = params
        spoken, teacher_logits = teacher.logits(frozen, batch.rows, batch.loss_mask)

    def chunk_loss(logits, valid, tokens, scalars):
        ids, piece, source = tokens
        denominator, temperature, at_start, spoken = scalars
        logprobs, entropies = logprobs_and_entropies(logits, ids, temperature)
        now, old = jax.lax.stop_gradient(logprobs), piece.old_logprobs
        old = old if at_start is None else jnp.where(at_start > 0, now, old)
        piece = piece._replace(loss_mask=valid, old_logprobs=old)
        losses, sums = token_losses(piece, logprobs, entropies, settings)
        if teacher_logits is not None:
            theirs = teacher_logits(spoken, source) / temperature
            losses, of_teacher = _with_teacher(piece, losses, logits / temperature, theirs, settings)
            sums |= of_teacher
        total = masked_sum(losses * piece.weights, valid) / denominator
        return total, (sums | {"loss": total}, {} if at_start is None else {"logprobs": now})

    def loss(new):
        both = with_trained(params, new)
        head, states, counted, routers = scorer.tokens(both, batch.rows, batch.loss_mask, routers=True)
        by_part = scorer.by_part((batch.rows.branch_ids, batch._replace(rows=None)))
        tokens, layout = (*gather_tokens(counted, by_part), counted.source), scorer.options.layout
        options = {"chunk": scorer.chunk, "shard_gradient": layout.by_shard, "states": layout.states}
        options["frozen"] = isinstance(params, Adapted)
        scalars = denominator, temperature, at_start, spoken
        total, (sums, by_token) = token_loss(head, states, counted, tokens, scalars, chunk_loss, **options)
        by_token = scorer.whole(scatter_tokens(counted, by_token, by_part[0].shape), batch.loss_mask.shape[-1])
        if routers is None:
            return total, sums | by_token
        router_sums_ = router_metrics(routers, replayed=batch.rows.trunk_routes is not None)
        if balance is not None:
            of_all = partial(sum_of_all, axis=scorer.axis)
            router_sums_["balance"] = balance_loss(routers, balance, of_all(jnp.sum(batch.loss_mask)), of_all)
            total = total + balance.coefficient * router_sums_["balance"]
        return total, sums | by_token | router_sums_

    fresh, sums = jax.grad(loss, has_aux=True)(trained(params))
    return jax.tree.map(jnp.add, gradients, fresh), sums


class TrainPrograms(OptimizerPrograms):
    """Compiled training programs for one network, optimizer and mesh: scoring and the optimizer step."""

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
        options: ForwardOptions = DEFAULT_OPTIONS,
        base: FrozenBase | None = None,
        experts: int = 0,
        teacher: FrozenTeacher | None = None,
    ):
        """Declare the programs; each is compiled on its first call.

        Args:
          graphdef, abstract_params: of `fr3e_jax.policy.network.build_network`.
          shardings: of the parameters (`fr3e_jax.programs.shardings.param_shardings`).
          mesh: of the shardings.
          optimizer: see `fr3e_jax.programs.optimizer_programs.make_optimizer`.
          loss: the policy loss; None: cross-entropy, for supervised fine-tuning.
          token_chunk: tokens of each shard, of the batch and of positions, whose logits exist at once.
          options: how the network is computed; its layout is replaced by that of ``mesh``.
          base: the weights below the adapters, where ``abstract_params`` and ``shardings`` are those of adapters.
          experts: of a layer of the network, for `count_routes`.
          teacher: scores the rows, too; None: there is none.
        """
        self.shards, self._loss = batch_shards(mesh), loss
        self._experts = experts
        layout = mesh_layout(mesh, options.attention)
        scorer = RowScorer(graphdef, token_chunk, self.shards * layout.parts, replace(options, layout=layout))
        token_losses = supervised_token_losses if loss is None else policy_token_losses
        scorer_of_rows = scorer.of_replica(mesh) if mesh.shape[REPLICA] > 1 else scorer
        self.teacher, self._teaches = teacher, teacher is not None and loss is not None and loss.teacher_weight > 0
        teaching = scorer_of_rows.of_teacher(teacher, mesh) if self._teaches else None
        accumulate = partial(_accumulate, scorer_of_rows, token_losses, loss, teaching)
        super().__init__(mesh, optimizer, abstract_params, shardings, accumulate)
        on_all = replicated(mesh)
        self._score = Program(scorer.score, out_shardings=(self._rows, self._rows))
        if teacher is not None:
            # Entropies, too, though nobody reads them: the log-probs are then bit for bit those of the policy's pass.
            teacher_score = scorer.of_teacher(teacher, mesh).score
            self._teacher_score = Program(teacher_score, out_shardings=(self._rows, self._rows))
        self._branching = Program(scorer.branching, out_shardings=on_all)
        self._count_routes = Program(partial(count_routes, experts=experts), out_shardings=on_all)
        self.base = base
        if base is not None:
            self._merged = merged_as_stored(base)
            self._change = Program(partial(relative_change, base.scale), out_shardings=on_all)

    def abstract_batch(
        self, shape: RowShape, *, trained_trunks: bool = False, routes: RecordedRoutes | None = None
    ) -> TrainRows:
        """The abstract arrays of a micro-batch.

        Args:
          shape: of its rows.
          trained_trunks: rows have lanes for the losses of trunk tokens.
          routes: recorded for each token; None: none are.
        """
        further = shape.trunk_lanes if trained_trunks else 0
        lanes = shape.lanes + further, shape.capacity

        def array(dtype, *sizes):
            return abstract((shape.rows, *sizes), dtype, self._rows)

        def routed(*sizes):
            return array(routes.dtype, routes.count, *sizes) if routes else None

        rows = Rows(
            *(array(np.int32, shape.trunk_size),) * 3,
            *(array(np.int32, *lanes),) * 5,
            array(np.bool_, shape.window) if shape.window > 1 else None,
            routed(shape.trunk_size),
            routed(*lanes),
            trained_trunk=array(np.bool_, further) if further else None,
        )
        mask, scalar, loss = array(np.bool_, *lanes), array(np.float32, *lanes), self._loss or LossSettings()
        return TrainRows(
            rows,
            mask,
            *(scalar,) * 4,
            reference_logprobs=scalar if loss.kl_coefficient else None,
            **{name: scalar for name in loss.sequence_fields},
            penalised=mask if loss.covariance_penalty is not None else None,
            taught=mask if loss.teacher_selects else None,
        )

    def declare(
        self, declare: Declarations, batches: Sequence[TrainRows], *, scores: bool = True, balances: bool = False
    ) -> None:
        """Declare the programs of a step on abstract micro-batches, scored first if ``scores``.

        ``balances``: the loss balances experts.
        """
        params = self.abstract_arrays()["params"]
        read, scalar = params if self.base is None else self.base.abstract_below(params), abstract((), np.float32)
        for batch in batches if scores else ():
            declare(self._score, read, batch.rows, scalar)
        teacher = None if self.teacher is None else self.teacher.abstract_params()
        for batch in batches if teacher is not None and not self._teaches else ():
            declare(self._teacher_score, teacher, batch.rows, scalar)
        if self._teaches:
            read = Taught(read, teacher)
        balance = []
        if balances:
            counts = None if batches[0].rows.branch_routes is None else abstract((self._experts,), np.float32)
            for batch in batches if counts is not None else ():
                declare(self._count_routes, batch.rows.branch_routes, batch.loss_mask)
            balance = [Balance(scalar, scalar, counts)]
        self.declare_update(declare, read, batches, scalar, scalar, scalar, *balance)

    def read(self, params: Params) -> Any:
        """The weights that a pass over rows reads: the parameters, or base and adapters."""
        return params if self.base is None else self.base.below(params)

    def read_to_train(self, params: Params) -> Any:
        """The weights that a gradient pass reads: those of `read`, and the teacher's where the loss has its term."""
        return Taught(self.read(params), self.teacher.params()) if self._teaches else self.read(params)

    def whole(self, params: Params) -> Params:
        """The parameters of a network without adapters that computes the same; ``params`` if there are none."""
        return params if self.base is None else self._merged(self.base.below(params))

    def relative_change(self, params: Params) -> jax.Array | None:
        """`fr3e_jax.policy.lora.relative_change` of the adapters; None: there are none."""
        return None if self.base is None else self._change(self.base.below(params))

    def score(self, params: Params, rows: Rows, temperature: float) -> tuple[jax.Array, jax.Array]:
        """`RowScorer.score`; returns while it runs. `fetched` brings the arrays to the host."""
        return self._score(self.read(params), self.place(rows), jnp.float32(temperature))

    def teacher_score(self, rows: Rows, temperature: float) -> jax.Array:
        """The teacher's log-probs (at ``temperature``) of the branch tokens, ``[B, N, T]``; returns while it runs."""
        return self._teacher_score(self.teacher.params(), self.place(rows), jnp.float32(temperature))[0]

    def count_routes(self, batch: TrainRows) -> jax.Array:
        """Count the recorded routes of the tokens that train by expert, int32 ``[experts]``."""
        return self._count_routes(*self.place((batch.rows.branch_routes, batch.loss_mask)))

    def branching(self, params: Params, rows: Rows) -> np.ndarray:
        """`RowScorer.branching`, fetched to the host."""
        return jax.device_get(self._branching(self.read(params), self.place(rows)))
