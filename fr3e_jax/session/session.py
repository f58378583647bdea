"""Everything that a verb needs before it starts, built from a configuration."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fr3e_jax.cluster.processes import Processes, own_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.judge_section import JUDGE
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.data.task import Task, load_task
from fr3e_jax.data.template_check import check_template
from fr3e_jax.data.templates import chat_options, load_template
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.hub import model_directory, pinned
from fr3e_jax.learning.micro_batch_shapes import declared_rows
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.objectives.user_objectives import check_estimator, user_loss
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.programs.host_memory import keep_host_memory
from fr3e_jax.programs.mesh import batch_shards
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rewards.grader import Grader, VerifierError
from fr3e_jax.rewards.user import check_by_a_call, user_verifier
from fr3e_jax.rewards.verifier import UNJUDGED, unjudged
from fr3e_jax.rollouts.declared_shapes import declared_shapes
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.noise import Noise
from fr3e_jax.rollouts.requests import Sampling
from fr3e_jax.rollouts.stop_texts import StopTexts
from fr3e_jax.rollouts.toolbox import Toolbox, answer_form, observation_form
from fr3e_jax.runs.compilation import count_compilations, open_cache
from fr3e_jax.session.grading import ENVIRONMENT, ResponseGrader, RewardRange
from fr3e_jax.session.model import Model, open_model
from fr3e_jax.session.posed_task import posed_task
from fr3e_jax.session.sampler import Sampler
from fr3e_jax.session.teacher import check_tokenizers, open_teacher
from fr3e_jax.session.texts import Texts
from fr3e_jax.tools.environment import MakeEnvironment, environment_tool, load_environment
from fr3e_jax.tools.tool import load_tool


@dataclass
class Session:
    """The parts of a run. A function that needs one part takes that part; the method's stages take the session."""

    config: Config
    task: Task
    texts: Texts
    model: Model
    sampler: Sampler
    grader: ResponseGrader
    processes: Processes = Processes()

    @cached_property
    def noise(self) -> Noise:
        """The source of the host's random choices."""
        return Noise(self.config.seed)

    @cached_property
    def learning(self) -> LearningSetup:
        """The part that learning depends on."""
        architecture, shards = self.model.architecture, batch_shards(self.model.mesh)
        rows, pad_id = self.shapes.rows, self.texts.codec.pad_id
        sizes = architecture.vocab_size, architecture.key_cost, rows, shards
        return LearningSetup(self.config, self.noise, pad_id, *sizes, gather=self.processes.gather)

    @cached_property
    def shapes(self) -> Shapes:
        """All shapes of the run."""
        rows = declared_rows(self.config, batch_shards(self.model.mesh), self.model.architecture.key_cost)
        return replace(self.sampler.engine.shapes, rows=rows)

    def prompt_stream(self) -> PromptStream:
        """A fresh stream of the training prompts."""
        data = self.config.data
        problems = self.task.problems("train")
        if data.train_problems:
            problems = [problems[n] for n in range(min(data.train_problems, len(problems)))]
        return PromptStream(problems, data.seed, self.texts.prompt_ids, data.max_prompt_tokens)

    def sampling(self) -> Sampling:
        """Sampling settings of base and explored rollouts."""
        r = self.config.rollout
        return Sampling(r.temperature, r.top_p, stop_ids=self.texts.codec.stop_ids)


GARBAGE_THRESHOLDS = 20_000, 10, 10  # Python's first is 700: searches took half the time of planning 100,000 rows


def start_runtime(cache: str) -> None:
    """Apply process-wide settings; call it before the first array is made. ``cache``: of compiled programs."""
    keep_host_memory()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        open_cache(cache)
    except OSError as error:
        raise ConfigError(
            f"runtime.compilation_cache={cache} cannot be used: {error}; name another folder, or none"
        ) from error
    count_compilations()


def open_session(
    config: Config, task: Task | None = None, *, keeps_routes: bool = False, devices: Sequence | None = None
) -> Session:
    """Build the session that ``config`` describes.

    Args:
      config: the settings.
      task: the problems and their verifier; None: those that ``data.task`` names.
      keeps_routes: rollouts may train, so they record the experts of their tokens, if the network has any, and a
        teacher is opened.
      devices: of the mesh; None: all that jax has. Absent ones (`fr3e_jax.planning`) only serve to compile for.

    Raises:
      ConfigError: a setting names a task, tokenizer, template, verifier, model or mesh that cannot be used.
    """
    start_runtime(config.runtime.compilation_cache)
    processes = own_processes()
    texts = open_texts(config)
    with as_config_error():
        task = load_task(config.data) if task is None else task
        texts.prompt_text("?")  # a missing chat template fails here, before a run directory exists
        make = load_environment(config.environment, task)
        if make is not None:
            task = posed_task(task, make, config.environment, texts.prompt_ids, texts.codec.without_marks)
        user_loss(config.loss.function)  # traces it once
        check_estimator(config.advantage.base_estimator, config.rollout.rollouts_per_prompt)
        grader = open_grader(config, task, ENVIRONMENT if make else "verifier")
    model, sampler = open_sampler(config, texts, processes, make, keeps_routes=keeps_routes, devices=devices)
    of_episodes = RewardRange(*config.environment.reward_range)
    graded = ResponseGrader(grader, texts, processes, of_episodes)
    return Session(config, task, texts, model, sampler, graded, processes)


def open_grader(config: Config, task: Task, name: str) -> Grader:
    """The grader of a run: the verifier that ``data.verifier`` names, or the task's; a judge in its place or beside it.

    ``name``: what gives the rewards, for messages.

    Raises:
      ConfigError: the verifier cannot be called, or the judge does not answer.
    """
    grader, problems = None, task.problems("train")
    with as_config_error(OSError, TypeError, ValueError, VerifierError):
        if not (config.judge.enabled and config.judge.alone):
            user_function = user_verifier(config.data.verifier)
            verifier = user_function or task.verifier()
            if unjudged in getattr(verifier, "by_card", {}).values():
                raise ValueError(UNJUDGED)
            grader = Grader(verifier, config.rewards, name)
            if user_function:
                check_by_a_call(grader, problems, config.data.verifier)
        if not config.judge.enabled:
            return grader
        from fr3e_jax.rewards.judge import Judge, check_by_asking  # only runs with a judge need it

        judge = Judge(config.judge, grader)
        judged = Grader(judge, config.rewards, JUDGE)
        try:
            check_by_asking(judged, judge, config.judge, problems)
        except BaseException:
            judged.close()
            raise
        return judged


def open_texts(config: Config) -> Texts:
    """The tokenizer and the template that ``config`` names.

    An id of the Hugging Face hub gets the commit that it stands for, in ``config``.

    Raises:
      ConfigError: one of them cannot be used.
    """
    with as_config_error():
        model = config.model
        model.path, model.tokenizer = pinned(model.path), pinned(model.tokenizer, "model.tokenizer")
        path = str(model_directory(model.path)) if model.path else ""
        if path:
            read_architecture(path)  # raises for a folder that is no model, whose tokenizer would be missed first
        codec = TextCodec.load(model.tokenizer or path, model=path, chat=chat_options(config.data))
        codec.stop_at(config.rollout.stop_tokens, config.rollout.stop_texts)
        template = load_template(config.data.template)
        check_template(template, codec)
        return Texts(codec, template)


def open_sampler(
    config: Config,
    texts: Texts,
    processes: Processes,
    make: MakeEnvironment | None = None,
    *,
    keeps_routes: bool = False,
    devices: Sequence | None = None,
) -> tuple[Model, Sampler]:
    """The model that ``config`` names, and what samples from it, in the environment that ``make`` makes.

    Raises:
      ConfigError: the model, the mesh, a tool or the form of observations cannot be used.
    """
    codec = texts.codec
    with as_config_error():
        model, programs = open_model(config, len(codec), keeps_routes=keeps_routes, devices=devices)
        codec.fit(model.architecture.vocab_size)
        if keeps_routes and config.teacher.path:
            config.teacher.path = pinned(config.teacher.path, "teacher.path")
            check_tokenizers(config.teacher.path, codec)
            model = replace(model, teacher=open_teacher(config, model.architecture, model.mesh))
        if codec.rows < len(codec):
            texts.prompt_ids("1")  # a mark of the template that the embedding lacks fails here, not at every prompt
        toolbox = None
        tool = (
            load_tool(config.tools) if make is None else environment_tool(make, config.environment, codec.without_marks)
        )
        if tool is not None:
            setting, chat = config.environment.observation, texts.template.chat
            if tool.is_environment:
                form = observation_form(setting, codec, chat=chat, turn_end=tool.end)
            else:
                form = answer_form(tool, codec)
            toolbox = Toolbox(tool, form, codec, codec.rows, programs, processes, config.seed)
    stops = None
    if codec.stop_texts and toolbox is None:
        stops = StopTexts(codec.stop_texts, codec.token_bytes(codec.rows), programs)
    engine = RolloutEngine(programs, declared_shapes(config), seed=config.seed, pad_id=codec.pad_id)
    return model, Sampler(engine, model.weights, toolbox, stops)
