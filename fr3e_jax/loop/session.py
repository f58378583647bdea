"""Everything a verb needs before it starts, built from a configuration: devices, tokenizer, task, network, decoder."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.cluster.processes import Processes, own_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.problem import Problem
from fr3e_jax.data.task import Task, load_task
from fr3e_jax.data.templates import Template, load_template
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.learning.configured_programs import (
    configured_architecture,
    configured_critic_programs,
    configured_train_programs,
    model_directory,
)
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.network import Params, build_network, initial_params
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.host_arrays import params_on_mesh
from fr3e_jax.programs.host_memory import keep_host_memory
from fr3e_jax.programs.mesh import abstract_arrays, make_mesh, param_shardings, rollout_mesh
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.programs.train_programs import TrainPrograms
from fr3e_jax.rewards.grader import Grader, Pending, VerifierError
from fr3e_jax.rewards.user import user_verifier
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import CachedTrunk, Ended, Key, Rollout, Sampling, Selector, TrunkRequest
from fr3e_jax.rollouts.tool_calls import Toolbox, ToolCalls, open_toolbox
from fr3e_jax.runs.compilation import count_compilations

# Purposes: the first name of every noise stream, so that no two uses of randomness share one.
BASE, STATE, EVALUATION, SAMPLE, CHOICE, SHUFFLE, ARCHIVE, TOOL = range(8)


@contextlib.contextmanager
def settings_at_fault() -> Iterator[None]:
    """Turns the errors of what the settings name (files, models, tasks, meshes, texts) into ``ConfigError``.

    To be put around the reading of those things only: there a ``ValueError`` or ``OSError`` carries a message for the
    user, elsewhere it is a bug and keeps its traceback.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


@contextlib.contextmanager
def verifier_at_fault() -> Iterator[None]:
    """Turns what the grader says of a verifier that cannot be used into ``ConfigError``, one line for the user."""
    try:
        yield
    except (TypeError, ValueError, VerifierError) as error:
        raise ConfigError(str(error)) from error


@dataclass
class Session:
    config: Config
    mesh: Mesh
    codec: TextCodec
    task: Task
    grader: Grader
    architecture: Architecture
    graphdef: nnx.GraphDef
    abstract_params: Params
    param_shardings: Params
    rollout_weights: RolloutWeights
    engine: RolloutEngine
    template: Template
    toolbox: Toolbox | None = None
    processes: Processes = Processes()
    grading_wait_seconds: float = 0.0  # spent waiting for verdicts, since it was last set to 0

    def fresh_params(self) -> Params:
        """The weights a run starts from: those of ``model.path``, or random ones of ``seed``."""
        model = self.config.model
        if model.path:
            with settings_at_fault():
                directory = model_directory(model.path)
                params = load_params(directory, self.architecture, self.abstract_params, self.param_shardings)
        else:
            params = initial_params(self.architecture, jax.random.key(self.config.seed), param_dtype=model.param_dtype)
        return params_on_mesh(params, self.param_shardings)

    def sharded_abstract_params(self) -> Params:
        """Shapes, types and shardings of the weights, to restore a checkpoint into."""
        return abstract_arrays(self.abstract_params, self.param_shardings)

    def train_programs(self, *, supervised: bool = False) -> TrainPrograms:
        return configured_train_programs(
            self.config, self.graphdef, self.abstract_params, self.param_shardings, self.mesh, supervised=supervised
        )

    def critic_programs(self) -> CriticPrograms | None:
        """Those of PPO's value network, where the method has one."""
        if self.config.advantage.base_estimator != "gae":
            return None
        return configured_critic_programs(self.config, self.architecture, self.mesh)

    def sampling(self) -> Sampling:
        """How base and explored rollouts are drawn."""
        r = self.config.rollout
        return Sampling(r.temperature, r.top_p, r.top_k, self.codec.stop_ids)

    def sample(
        self,
        params: Params,
        requests: Sequence[TrunkRequest],
        select: Selector | None = None,
        ended: Ended | None = None,
    ) -> tuple[list[list[Rollout]], dict[Key, CachedTrunk]]:
        """`RolloutEngine.sample`, with the run's tools."""
        if self.toolbox is None:
            return self.engine.sample(params, requests, select, ended)
        return self.engine.sample(params, requests, select, ended, ToolCalls(self.toolbox, requests))

    def encode(self, text: str) -> np.ndarray:
        return np.asarray(self.codec.encode(text), np.int32)

    def prompt_text(self, question: str) -> str:
        """The question in the template of ``data.template``, as the policy gets it."""
        return self.template.render(question, self.codec.render_chat)

    def prompt_ids(self, question: str) -> np.ndarray:
        """Token ids of ``prompt_text(question)``."""
        return self.encode(self.prompt_text(question))

    def response_text(self, token_ids: np.ndarray, finished: bool) -> str:
        """The text of a whole response without its stop token; other special tokens stay visible to the verifier."""
        ids = token_ids[:-1] if finished else token_ids
        return self.codec.decode(ids, special_tokens=True)

    def submit(self, problem: Problem, prefix: np.ndarray, rollout: Rollout) -> Pending:
        """Hands the full response to the grader: the base tokens before the fork and the rollout's own."""
        response = self.response_text(np.concatenate([prefix, rollout.token_ids]), rollout.finished)
        with verifier_at_fault():
            return self.grader.submit(problem, response, rollout.finished)

    def take_outcomes(self) -> Counter[str]:
        """`Grader.take_outcomes`, added up over the processes."""
        return sum(map(Counter, self.processes.gather(self.grader.take_outcomes())), Counter())

    def take_tool_counts(self) -> Counter[str]:
        """`Toolbox.take_counts`; nothing where there are no tools."""
        return self.toolbox.take_counts() if self.toolbox is not None else Counter()

    def generator(self, *names: int) -> np.random.Generator:
        """Random choices of the host that depend on the run's seed and these names alone."""
        return np.random.default_rng([self.config.seed, *names])


def start_runtime(config: Config) -> None:
    """Process-wide settings of jax; call before the first array is made."""
    if config.runtime.keep_host_memory:
        keep_host_memory()
    cache = config.runtime.compilation_cache
    if cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        path = Path(cache).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    count_compilations()


def open_session(config: Config) -> Session:
    """Build a session; ``ConfigError`` where a setting names what cannot be used (task, tokenizer, model, mesh)."""
    start_runtime(config)
    processes = own_processes()
    with settings_at_fault():
        model = str(model_directory(config.model.path)) if config.model.path else ""
        codec = TextCodec.load(config.model.tokenizer or model, model=model)
        task = load_task(config.data)
        template = load_template(config.data.template)
        template.render("?", codec.render_chat)  # a missing chat template is told now, before there is a run directory
        grader = Grader(user_verifier(config.data.verifier) or task.verifier(), config.rewards)
        architecture = configured_architecture(config, len(codec))
        m = config.mesh
        mesh = make_mesh(m.replica, m.fsdp, m.tensor)
        decoding = rollout_mesh(mesh, replica=m.rollout_replica, fsdp=m.rollout_fsdp, tensor=m.rollout_tensor)
        graphdef, abstract, axes = build_network(
            architecture, param_dtype=config.model.param_dtype, compute_dtype=config.model.compute_dtype
        )
        shardings = param_shardings(mesh, abstract, axes, architecture)
        targets = param_shardings(decoding, abstract, axes, architecture, prefix="mesh.rollout_")
        programs = DecoderPrograms(graphdef, architecture, decoding)
        toolbox = open_toolbox(config.tools, codec, architecture.vocab_size, programs, processes)
    engine = RolloutEngine(
        programs,
        trunk_slots=config.rollout.trunk_slots,
        lanes_per_trunk=config.rollout.lanes_per_trunk,
        chunk=config.rollout.decode_chunk,
        seed=config.seed,
        pad_id=codec.pad_id,
    )
    return Session(
        config=config,
        mesh=mesh,
        codec=codec,
        task=task,
        grader=grader,
        template=template,
        architecture=architecture,
        graphdef=graphdef,
        abstract_params=abstract,
        param_shardings=shardings,
        rollout_weights=RolloutWeights(abstract, shardings, targets, config.rollout.param_dtype),
        engine=engine,
        toolbox=toolbox,
        processes=processes,
    )
