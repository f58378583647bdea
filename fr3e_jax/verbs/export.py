"""``fr3e export``: a run's weights as a Hugging Face directory."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from fr3e_jax.cli.arguments import on_this_machine, positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read, saved_config
from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.configuration.error_conversion import as_config_error

if TYPE_CHECKING:
    from fr3e_jax.session.model import Model

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run", metavar="RUN", help="directory of a training run; its newest checkpoint is exported")
    parser.add_argument(
        "directory", type=on_this_machine, metavar="DIR", help="new or empty directory, or an earlier export to replace"
    )
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), help="type of the weights (default: the run's own, which loses nothing)"
    )
    parser.add_argument("--step", type=positive, metavar="N", help="export the checkpoint of this step, not the newest")
    parser.add_argument(
        "--adapter", action="store_true", help="write the adapters of a run with model.lora.rank, as PEFT reads them"
    )


def run(arguments: argparse.Namespace) -> int:
    """Export the checkpoint that the arguments name; return the exit code."""
    run_dir, directory = run_to_read(arguments.run, checkpoints=True), Path(arguments.directory)
    return export_run(
        load_config(saved_config(run_dir), training=False),
        run_dir,
        directory,
        dtype=DTYPES[arguments.dtype] if arguments.dtype else "",
        step=arguments.step,
        adapter=arguments.adapter,
    )


def export_run(
    config: Config,
    run_dir: Path,
    directory: Path,
    *,
    dtype: str = "",
    step: int | None = None,
    adapter: bool = False,
) -> int:
    """Write a run's checkpoint as a Hugging Face directory with a model card; return the exit code.

    Adapters are merged into their base.

    Args:
      config: the run's saved settings; neither its task nor its mesh is needed.
      run_dir: the run's directory.
      directory: new, empty, or an earlier export.
      dtype: type of the weights, ``"float32"``, ``"bfloat16"`` or ``"float16"``; empty: the run's own, without loss.
      step: which checkpoint; None: the newest.
      adapter: write the adapters alone, as PEFT reads them.

    Raises:
      ConfigError: there is no such checkpoint, no adapter where one is asked for, or ``directory`` holds something
        other than an earlier export; or a weight is NaN or infinite.
    """
    import jax

    from fr3e_jax.cluster.processes import own_processes
    from fr3e_jax.data.tokenizer import TextCodec
    from fr3e_jax.policy.adapter_files import save_adapters
    from fr3e_jax.programs.mesh import make_mesh
    from fr3e_jax.session.model import configured_architecture, model_on
    from fr3e_jax.session.run_weights import read_run_params
    from fr3e_jax.studies.analysis.stored_run import StoredRun
    from fr3e_jax.verbs.model_card import model_card
    from fr3e_jax.verbs.model_directory import CARD, check_replaceable, replaced_directory, write_model

    own_processes()  # refuses a machine without the devices that are asked for
    model = config.model
    with as_config_error():
        check_replaceable(directory)
        codec = TextCodec.load(model.tokenizer or model.path, model=model.path)
        codec.stop_at(config.rollout.stop_tokens, config.rollout.stop_texts)
        architecture = configured_architecture(config, len(codec))
        codec.fit(architecture.vocab_size)
        devices = jax.devices()[: math.gcd(jax.device_count(), architecture.hidden_size)]  # any number works
        policy = model_on(make_mesh(devices=devices), config, architecture)
        if adapter:
            _check_adapter(policy, config, run_dir)
        params, step = read_run_params(run_dir, policy, step)
        stored = "float32" if adapter else model.param_dtype
        record = {"run": str(run_dir), "step": step, "dtype": dtype or stored}
        card = model_card(StoredRun.open(run_dir), config, step, record["dtype"], adapter=adapter)
        if adapter:
            with replaced_directory(directory, record) as filled:
                where = {"base": model.path, "dtype": record["dtype"]}
                save_adapters(filled, architecture, policy.lora, params, **where)
                (filled / CARD).write_text(card, encoding="utf-8")
        else:
            whole = policy.whole(params, "" if record["dtype"] == "bfloat16" else "float32")  # rounded once, if at all
            write_model(directory, architecture, whole, codec, model.path, record, card=card)
    size = sum(file.stat().st_size for file in Path(directory).expanduser().iterdir())
    print(f"step {step} of {run_dir} as {record['dtype']}: {directory} ({size / 1e6:,.1f} MB)")
    return 0


def _check_adapter(policy: Model, config: Config, run_dir: Path) -> None:
    """Refuse to export adapters that a run does not have, or whose base nobody else has."""
    if policy.lora is None:
        raise ConfigError(f"--adapter: {run_dir} trained all weights (model.lora.rank=0); leave it out to export them")
    if not config.model.path:
        raise ConfigError(
            f"--adapter: the base of {run_dir} are random weights of seed {config.seed}, which no directory holds; "
            "leave it out to export the merged model"
        )


VERB = Verb("fr3e export runs/demo-20250101-120000 my_model --dtype bf16", declare, run, recipe=False)
