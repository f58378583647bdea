"""Everything a verb needs before it starts, built from a configuration: devices, tokenizer, task, network, decoder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.task import Problem, Task, load_task
from fr3e_jax.data.templates import Template, load_template
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.loop.compilation import count_compilations
from fr3e_jax.loop.rollouts import Rollout, RolloutEngine, Sampling
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.network import Params, build_network, initial_params
from fr3e_jax.programs.decoder import DecoderPrograms
from fr3e_jax.programs.host_memory import keep_host_memory
from fr3e_jax.programs.mesh import abstract_arrays, make_mesh, param_shardings
from fr3e_jax.programs.train import LossSettings, TrainPrograms, make_optimizer, param_placement
from fr3e_jax.rewards.grader import Grader, Pending, VerifierError
from fr3e_jax.rewards.user import user_verifier

# Purposes: the first name of every noise stream, so that no two uses of randomness share one.
BASE, STATE, EVALUATION, SAMPLE, CHOICE, SHUFFLE, ARCHIVE = range(7)


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
    engine: RolloutEngine
    template: Template
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
        return param_placement(self.mesh, params, self.param_shardings)

    def sharded_abstract_params(self) -> Params:
        """Shapes, types and shardings of the weights, to restore a checkpoint into."""
        return abstract_arrays(self.abstract_params, self.param_shardings)

    def train_programs(self, *, supervised: bool = False) -> TrainPrograms:
        o, loss = self.config.optimizer, self.config.loss
        optimizer = make_optimizer(
            learning_rate=o.learning_rate,
            schedule=o.schedule,
            warmup_updates=o.warmup_updates,
            decay_updates=o.decay_updates,
            beta1=o.beta1,
            beta2=o.beta2,
            epsilon=o.epsilon,
            weight_decay=o.weight_decay,
            max_grad_norm=o.max_grad_norm,
        )
        settings = LossSettings(
            epsilon_low=loss.epsilon_low,
            epsilon_high=loss.epsilon_high,
            dual_clip=loss.dual_clip,
            importance_cap=loss.importance_cap,
            entropy_coefficient=loss.entropy_coefficient,
        )
        return TrainPrograms(
            self.graphdef,
            self.abstract_params,
            self.param_shardings,
            self.mesh,
            optimizer,
            loss=None if supervised else settings,
            token_chunk=self.config.training.token_chunk,
            remat=self.config.training.remat,
        )

    def sampling(self) -> Sampling:
        """How base and explored rollouts are drawn."""
        r = self.config.rollout
        return Sampling(r.temperature, r.top_p, r.top_k, self.codec.stop_ids)

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


def model_directory(path: str) -> Path:
    """``model.path`` as a directory; raises FileNotFoundError unless it is one."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise FileNotFoundError(
            f"model.path={path} is no directory; expected a Hugging Face directory (config.json, safetensors, "
            "tokenizer), such as `fr3e sft` writes, or nothing for random weights"
        )
    return directory


def configured_architecture(config: Config, vocab_size: int) -> Architecture:
    """From ``model.path``, or from the sizes in ``model`` for random weights."""
    model = config.model
    if model.path:
        architecture = read_architecture(model_directory(model.path))
        if vocab_size > architecture.vocab_size:
            raise UnsupportedModel(
                f"the tokenizer has {vocab_size} tokens, the model's embedding {architecture.vocab_size}; "
                "set model.tokenizer to the model's own tokenizer"
            )
        return architecture
    return Architecture(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.hidden_size // model.num_heads,
        intermediate_size=model.intermediate_size,
        rope_theta=model.rope_theta,
        tie_word_embeddings=model.tie_word_embeddings,
    )


def open_session(config: Config) -> Session:
    """Build a session; ``ConfigError`` where a setting names what cannot be used (task, tokenizer, model, mesh)."""
    start_runtime(config)
    with settings_at_fault():
        model = str(model_directory(config.model.path)) if config.model.path else ""
        codec = TextCodec.load(config.model.tokenizer or model, model=model)
        task = load_task(config.data)
        template = load_template(config.data.template)
        template.render("?", codec.render_chat)  # a missing chat template is told now, before there is a run directory
        grader = Grader(user_verifier(config.data.verifier) or task.verifier(), config.rewards)
        architecture = configured_architecture(config, len(codec))
        mesh = make_mesh(config.mesh.replica, config.mesh.fsdp, config.mesh.tensor)
    graphdef, abstract, axes = build_network(
        architecture, param_dtype=config.model.param_dtype, compute_dtype=config.model.compute_dtype
    )
    engine = RolloutEngine(
        DecoderPrograms(graphdef, architecture, mesh),
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
        param_shardings=param_shardings(mesh, abstract, axes),
        engine=engine,
    )
