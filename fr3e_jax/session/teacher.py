"""The teacher that ``teacher.path`` names: its network on the run's mesh, and whether it fits the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jax.sharding import Mesh

from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.sampler_rules import INT8
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.hub import model_directory
from fr3e_jax.learning.configured_programs import forward_options
from fr3e_jax.objectives.user_objectives import user_loss
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.int8 import with_scales
from fr3e_jax.policy.network import Params, build_network
from fr3e_jax.programs.frozen_teacher import FrozenTeacher
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.programs.shardings import param_shardings


def open_teacher(config: Config, policy: Architecture, mesh: Mesh) -> FrozenTeacher | None:
    """The configured teacher, whose weights are read later; None: there is none.

    Args:
      config: the settings.
      policy: the network of the policy.
      mesh: of the run, over which the teacher's weights are split by the rules of its own sizes.

    Raises:
      UnsupportedModel, FileNotFoundError: there is no such model, or it does not fit policy, mesh or loss.
    """
    settings = config.teacher
    if not settings.path:
        return None
    _check_loss(config)
    directory, name = str(model_directory(settings.path, "teacher.path")), f"teacher.path={settings.path}"
    try:
        architecture = read_architecture(directory)
        _check_sizes(config, policy, architecture)
        return _teacher(config, architecture, policy.vocab_size, mesh, directory)
    except ValueError as error:
        text = str(error).replace("rollout.param_dtype", "teacher.param_dtype")
        raise UnsupportedModel(text if text.startswith("teacher.") else f"{name}: {text}") from error


def _teacher(config: Config, architecture: Architecture, columns: int, mesh: Mesh, directory: str) -> FrozenTeacher:
    compute = config.model.compute_dtype
    stored = config.teacher.param_dtype or config.model.param_dtype
    types = {"param_dtype": compute if stored == INT8 else stored, "compute_dtype": compute}

    def on_mesh(abstract, axes):
        return param_shardings(mesh, abstract, axes, architecture)

    graphdef, abstract, axes = build_network(architecture, **types)
    shardings = on_mesh(abstract, axes)
    load = partial(_loaded, directory, architecture, abstract, shardings)
    options = forward_options(config, architecture, mesh)
    if stored != INT8:
        return FrozenTeacher(graphdef, abstract, shardings, options, columns, load)
    graphdef, abstract, axes = build_network(architecture, completed=with_scales, **types)
    narrow = RolloutWeights(abstract, on_mesh(abstract, axes), on_mesh(abstract, axes), compute)
    in_int8 = partial(_in_int8, narrow, load)
    return FrozenTeacher(graphdef, narrow.abstract, narrow.shardings, options, columns, in_int8)


def _loaded(directory: str, architecture: Architecture, abstract: Params, shardings: Params) -> Params:
    with as_config_error():
        return load_params(directory, architecture, abstract, shardings)


def _in_int8(narrow: RolloutWeights, load: Callable[[], Params]) -> Params:
    params = narrow.of(load())
    narrow.release()  # it would keep an array of those that were loaded
    return params


def _check_loss(config: Config) -> None:
    function = user_loss(config.loss.function)
    if function is not None and config.teacher.place == "advantage" and "advantages" not in function.fields:
        raise UnsupportedModel(
            f"teacher.place=advantage adds to advantages, which loss.function={config.loss.function} does not read (it "
            f"reads {', '.join(function.fields)}); give it the parameter advantages, or set teacher.place=loss"
        )


def _check_sizes(config: Config, policy: Architecture, teacher: Architecture) -> None:
    if teacher.vocab_size < policy.vocab_size:
        raise UnsupportedModel(
            f"it has {teacher.vocab_size} tokens (vocab_size), fewer than the {policy.vocab_size} of the policy, and "
            "says nothing about the others; expected a teacher with at least as many"
        )
    needed = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    if needed > teacher.max_position_embeddings:
        raise UnsupportedModel(
            f"it has {teacher.max_position_embeddings} positions (max_position_embeddings), and the longest sequence "
            f"needs {needed} (data.max_prompt_tokens={config.data.max_prompt_tokens} and rollout.max_response_tokens="
            f"{config.rollout.max_response_tokens}); lower these"
        )


def check_tokenizers(path: str, codec: TextCodec) -> None:
    """Refuse a teacher that reads the policy's token ids as other texts, or ends and opens texts with other tokens.

    Args:
      path: the teacher.
      codec: of the policy.

    Raises:
      ValueError: with the first difference.
      FileNotFoundError: there is no such teacher, or it has no tokenizer.
    """
    name, directory = f"teacher.path={path}", model_directory(path, "teacher.path")
    try:
        teacher = TextCodec.load(str(directory))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name} has no tokenizer.json or tokenizer_config.json, so that nothing says that it reads the policy's "
            "tokens; copy the files of its tokenizer there"
        ) from error
    ours, theirs = ({i: text for text, i in each.tokenizer.get_vocab().items()} for each in (codec, teacher))
    different = [i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i)]
    if different:
        first = different[0]
        raise ValueError(
            f"{name} has another tokenizer: {len(different)} ids differ, as {first}, which is {theirs.get(first)!r} "
            f"there and {ours.get(first)!r} for the policy; expected a teacher with the policy's tokenizer"
        )
    if not {*teacher.stop_ids} & {*codec.stop_ids}:
        theirs_ends = ", ".join(repr(theirs.get(i)) for i in teacher.stop_ids)
        raise ValueError(
            f"{name} ends responses with {theirs_ends}, the policy with "
            f"{', '.join(repr(ours.get(i)) for i in codec.stop_ids)}; set rollout.stop_tokens=[{theirs_ends}]"
        )
    if teacher.opening != codec.opening:
        texts = [", ".join(repr(ours.get(i)) for i in each.opening) or "nothing" for each in (teacher, codec)]
        raise ValueError(
            f"{name} opens texts with {texts[0]}, the policy with {texts[1]}; set model.tokenizer to the tokenizer "
            "that both were trained with"
        )
