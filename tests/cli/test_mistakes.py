"""Typical mistakes of new users: each costs one line that says what was found and what to do, and exit code 2.

They were collected by trying the command as users do: on a laptop, coming from TRL or verl, with a model of one's own,
with a verifier of one's own, and in sweeps.
"""

from __future__ import annotations

import shlex
import sys

import pytest

from fr3e_jax.cli import main

FILES = {
    "mine.yaml": "include: demo_fr3e.yaml\n",
    "tab.yaml": "training:\n\tmax_steps: 3\n",
    "colon.yaml": "training: {max_steps 3}\n",
    "list.yaml": "- a\n",
    "typo.yaml": "include: demo_fr3e.yaml\ntrainning: {max_steps: 3}\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "circle.yaml": "include: circle.yaml\n",
    "text.yaml": "hello\n",
    "none.py": "def f(problem, response, finished):\n    return None\n",
    "one.py": "def f(problem):\n    return 1.0\n",
    "raises.py": "def f(problem, response, finished):\n    return 1 / 0\n",
    "syntax.py": "def f(:\n",
    "text.py": "def f(problem, response, finished):\n    return 'yes'\n",
    "number.py": "def f(problem, response, finished):\n    return 2.0\n",
    "absent.py": "import no_such_module\n",
    "loss.py": "def f(logprobs):\n    return logprobs.sum()\n",
    "task.py": "x = 3\n",
    "a_file": "hello",
    "folder/readme.txt": "hello",
    "a_run/config.yaml": "name: tried\n",
    "empty.jsonl": "",
}

MISTAKES = [
    # The verb and the recipe
    ("", "expected a verb (train, sft, rft, eval, sample, ", "got nothing; nearest: fr3e train RECIPE"),
    ("trian demo", "got trian", "nearest: fr3e train RECIPE"),
    ("demo", "expected a verb before the recipe", "nearest: fr3e train demo"),
    ("train", "RECIPE", "`fr3e train --help` shows the usage"),
    ("train dmo", "no recipe dmo", "nearest: demo"),
    ("train nothere.yaml", "no recipe nothere.yaml", "a name that `fr3e methods` lists"),
    ("train configs/demo.yml", "no recipe configs/demo.yml", "nearest: demo"),
    ("train folder", "folder is a directory", "expected a recipe, a YAML file"),
    ("train text.yaml", "text.yaml: is text without settings", "for example 'explore: {num_anchors: 4}'"),
    ("train list.yaml", "list.yaml: is a list", "for example 'explore: {num_anchors: 4}'"),
    ("train tab.yaml", "tab.yaml: cannot be read as YAML", "line 2, column 1"),
    ("train colon.yaml", "training.max_steps 3 is not a setting", "nearest: training.max_steps"),
    ("train typo.yaml", "typo.yaml: trainning is not a setting", "nearest: training"),
    ("train twice.yaml", "duplicate key seed", "line 2"),
    ("train circle.yaml", "runs in a circle", "remove one of these includes"),
    # Flags and the form of settings
    ("train demo --steps 3", "--steps 3", "settings have no dashes: training.max_steps=3"),
    (
        "train demo --optimizer.learning_rate 1e-4",
        "--optimizer.learning_rate",
        "no dashes: optimizer.learning_rate=1e-4",
    ),
    ("train demo --lr 1e-4", "--lr 1e-4", "settings have no dashes: optimizer.learning_rate=1e-4"),
    ("train demo --num_generations 8", "--num_generations", "rollout.rollouts_per_prompt=8"),
    ("train demo --seed=3", "--seed=3", "settings have no dashes: seed=3"),
    ("train demo --resum", "--resum", "nearest: --resume"),
    ("train demo --verbose", "--verbose", "`fr3e train --help` shows the usage"),
    ("train demo optimizer.learning_rate", "'optimizer.learning_rate' is not key=value", "for example"),
    ("train demo optimizer.learning_rate =1e-4", "is not key=value", "for example explore.num_anchors=2"),
    ("train demo optimizer.learning_rate= 1e-4", "'1e-4' is not key=value", "for example explore.num_anchors=2"),
    ("train demo {explore.num_anchors:2}", "is not key=value", "for example explore.num_anchors=2"),
    (
        "train demo 'explore={num_anchors: 2'",
        "cannot read the value of 'explore={num_anchors: 2'",
        "expected ',' or '}'",
    ),
    # Names
    ("train demo optimizer.learning_rat=1e-4", "is not a setting", "nearest: optimizer.learning_rate"),
    ("train demo learning_rate=1e-4", "learning_rate is not a setting", "here it is optimizer.learning_rate"),
    ("train demo remat_policy=x", "remat_policy is not a setting", "`fr3e help all` lists all"),
    ("train demo beta=0.1", "beta is not a setting", "here it is kl.coefficient"),
    ("train demo max_completion_length=9", "max_completion_length", "here it is rollout.max_response_tokens"),
    (
        "train demo data.train_batch_size=16",
        "is not a setting",
        "training.batch_rollouts and rollout.prompts_per_round",
    ),
    ("train demo trainer.total_epochs=3", "is not a setting", "training.max_steps and training.max_sampled_tokens"),
    ("train demo trainer.n_gpus_per_node=8", "is not a setting", "all devices that jax finds are used"),
    ("train demo use_vllm=true", "use_vllm is not a setting", "leave it out"),
    ("train demo runtime.device=gpu", "runtime.device is not a setting", "all devices that jax finds are used"),
    ("train demo algorithm=grpo", "algorithm is not a setting", "`fr3e methods` lists them"),
    # Values
    ("train demo optimizer.learning_rate=-1", "learning_rate=-1 is not valid", "nearest: optimizer.learning_rate=0"),
    ("train demo seed=0:3", "seed=0:3 is not valid", "fr3e sweep RECIPE seed=0,1,2"),
    ("train demo seed=1:30", "seed=1:30 is not valid", "expected int >= 0"),
    ("train demo seed=0..2", "seed=0..2 is not valid", "fr3e sweep RECIPE seed=0,1,2"),
    ("train demo seed=0,1,2", "seed=0,1,2 is not valid", "fr3e sweep RECIPE seed=0,1,2"),
    ("train demo model.compute_dtype=fp16", "compute_dtype=fp16", "expected float32 | bfloat16"),
    ("train demo mesh.fsdp=64", "64 devices, but there are", "set one of them to -1"),
    # The model, the data, the folders
    ("train demo model.path=nothere", "nothere", "expected a Hugging Face directory"),
    ("sft demo model.path=nothere", "nothere is no directory", "expected a Hugging Face directory"),
    ("train demo model.hidden_size=128", "hidden_size=128 has no effect", "leave it out, or set model.path="),
    ("train demo model.path=a_file", "a_file", "expected a Hugging Face directory"),
    ("train demo model.path=folder", "folder/config.json not found", "model.path must name a Hugging Face directory"),
    ("train demo data.task=ordr", "data.task is 'ordr'", "did you mean 'order'?"),
    ("train demo data.task=gsm8k", "'gsm8k', which is a dataset", "data.task=datasets data.train=[gsm8k]"),
    ("train demo data.task=datasets", "no cards to train on", "set data.train"),
    ("train demo data.task=task.py:x", "which cannot be called", "expected a class or function"),
    ("train demo data.task=missing.py:x", "does not exist", "give its path"),
    ("train demo data.task=no_such_module:Task", "there is no module", "no_such_module"),
    ("train demo data.template=qwen_chat_boxed", "has no chat template", "set data.template to one that needs none"),
    ("train fr3e_gsm8k", "no file of dataset card gsm8k", "set data.root to the directory that has one of them"),
    ("train demo runtime.output_dir=a_file/sub", "runtime.output_dir=a_file/sub", "a folder that can be written"),
    ("train demo runtime.run_dir=a_file", "runtime.run_dir=a_file", "a folder that can be written"),
    ("train demo --resume nothere", "nothere is not a run directory", "expected one that fr3e made"),
    # A verifier of one's own
    ("train demo data.verifier=none.py:f", "the verifier returned None", "return a float"),
    ("train demo data.verifier=text.py:f", "the verifier returned 'yes'", "return a float"),
    ("train demo data.verifier=number.py:f", "the verifier returned 2.0", "number in [0, 1]"),
    ("train demo data.verifier=one.py:f", "takes 1 positional argument but 3 were given", "failed on a first call"),
    ("train demo data.verifier=raises.py:f", "ZeroDivisionError", "expected a function (problem, response, finished)"),
    ("train demo data.verifier=syntax.py:f", "SyntaxError", "line 1"),
    ("train demo data.verifier=absent.py:f", "No module named 'no_such_module'", "line 1"),
    ("train demo loss.function=loss.py:f", "f returned losses []", "one for each token"),
    ("train demo loss.function=syntax.py:f", "syntax.py:f cannot be imported", "line 1"),
    ("train demo data.verifier=none.py:g", "defines no g", "none.py:g"),
    ("train demo data.verifier=none.py", "data.verifier=none.py takes the place", "set FILE.py:NAME"),
    # The other verbs
    ("eval runs/demo-nothere", "no recipe runs/demo-nothere", "expected a path"),
    ("eval demo --run nowhere", "nowhere is not a run directory", "it has no config.yaml"),
    ("sample demo --prompt x --run nowhere", "nowhere is not a run directory", "it has no config.yaml"),
    ("sample demo --prompt x --num 0", "'0' is not a whole number", "of at least 1"),
    ("sample demo", "--prompt", "`fr3e sample --help` shows the usage"),
    ("sample demo --prompt hello", "character 'h' at position 0", "change the text, or set model.tokenizer"),
    ("sample demo --prompt ''", "--prompt is empty", "expected at least one token"),
    ("show nothere", "nothere holds no run: found no such directory", "`fr3e runs` lists them"),
    ("report folder", "folder holds no run: found a directory without config.yaml", "`fr3e runs` lists them"),
    ("export", "the following arguments are required: RUN, DIR", "`fr3e export --help` shows the usage"),
    ("export nothere out", "nothere is not a run directory", "expected one that fr3e made"),
    ("export a_run out --step 0", "'0' is not a whole number", "of at least 1"),
    ("export a_run out --dtype float8", "invalid choice: 'float8'", "choose from 'f32', 'bf16', 'f16'"),
    ("export a_run out seed=3", "unrecognized arguments: seed=3", "`fr3e export --help` shows the usage"),
    ("compare folder", "found no run", "fr3e compare RUN RUN ... or SWEEP_DIR"),
    ("runs nothere", "found no folder nothere", "fr3e runs DIR"),
    ("sweep demo seed", "'seed' is not key=value", "for example explore.num_anchors=2"),
    ("sweep demo seed=1,2 --verb eval", "invalid choice: 'eval'", "--verb"),
    ("sweep demo seed=0:3", "seed=0:3 is not valid", "seed=0,1,2"),
    ("sweep demo seed=[0,1", "'[0,1' lacks a closing ]", "lacks a closing ]"),
    ("sweep demo seed=0,1 seed=2", "seed is given twice", "write seed=0,1,2"),
    ("sweep demo seed=0,1 runtime.run_dir=x", "names the run directories itself", "set runtime.output_dir instead"),
    ("sweep demo seed=0,1 --jobs 0", "'0' is not a whole number", "at least 1"),
    ("plan demo --topology v5z:8x8", "no chip v5z", "expected v4, v5e, v5p"),
    ("plan demo --topology h100", "'h100' cannot be read", "expected CHIP:SHAPE like v5e:8x8"),
    ("plan demo --mesh 8x8", "--topology", "`fr3e plan --help` shows the usage"),
    ("help explor", "explor is not a setting", "nearest: explore"),
]


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """A working directory with the files of `FILES`, for all mistakes."""
    path = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "path", [*sys.path])  # a user's file adds its folder: other tests must not find its modules
        yield path


@pytest.mark.parametrize(("command", "found", "advice"), MISTAKES, ids=[command for command, *_ in MISTAKES])
def test_a_mistake_costs_one_line_that_says_what_to_do(folder, capsys, command, found, advice):
    before = {path for path in folder.rglob("*") if "__pycache__" not in path.parts}
    assert main(shlex.split(command)) == 2
    error = capsys.readouterr().err
    assert error.startswith("fr3e: error: ") and error.count("\n") == 1, "one line"
    assert found in error and advice in error, error
    assert {path for path in folder.rglob("*") if "__pycache__" not in path.parts} == before, "nothing was left behind"


def test_an_amount_may_have_an_exponent_and_a_number_is_decimal(capsys):
    """What YAML reads otherwise: 1e6 is no int to it, 010 is 8 and 1:30 is 90."""
    assert main(["train", "demo", "training.max_sampled_tokens=1e6", "seed=010", "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert "max_sampled_tokens: 1000000\n" in shown and "\nseed: 10\n" in f"\n{shown}"
