"""The public datasets, if they lie beside the repository: each card reads its file, each gold answer is right."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.schema import DataConfig, RewardsConfig
from fr3e_jax.data.cards import load_named
from fr3e_jax.data.dataset_split import load_split
from fr3e_jax.data.datasets import DatasetsTask
from fr3e_jax.data.overlap import overlaps
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rewards.named_verifiers import named_verifier
from fr3e_jax.verdict import Job

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "datasets"

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the real datasets are not beside this repository")

# card/split: rows, problems, what is dropped, the first gold answer
SETS = {
    "gsm8k/train": (7473, 7473, {}, "72"),
    "gsm8k/test": (1319, 1319, {}, "18"),
    "math500/test": (500, 500, {}, "\\left( 3, \\frac{\\pi}{2} \\right)"),
    "aime24/test": (30, 30, {}, "204"),
    "aime25/test": (30, 30, {}, "70"),
    "aime25/test_oneshot": (30, 30, {}, "70"),
    "amc23/test": (40, 40, {}, "27"),
    "minerva_math/test": (272, 272, {}, "1.6"),
    "minerva_math/test_rllm": (272, 272, {}, "9.6"),
    "gaokao2023en/test": (385, 383, {"empty_gold": 2}, "$\\{x|-2\\leq x < 1\\}$"),
    "olympiadbench/test": (675, 675, {}, "2"),
    "college_math/test": (2818, 2808, {"duplicate": 10}, "$10-4 n$"),
    "simplerl_lvl3to5/train": (8523, 8520, {"empty_gold": 2, "duplicate": 1}, "118"),
    "math_train/train": (7474, 7470, {"empty_gold": 4}, "0"),
    "math_train/easy": (7474, 1909, {"filtered_difficulty": 5565}, "11"),
    "deepscaler_aime/train": (975, 975, {}, "60"),
    "deepscaler_sub/train": (1209, 1205, {"empty_gold": 1, "duplicate": 2, "unreadable_gold": 1}, "\\frac{3}{7}"),
    "humaneval/test": (164, 164, {}, None),
}


def load(name):
    return load_split(*load_named(name, "train"), str(REAL))


@pytest.mark.parametrize("name", SETS)
def test_card_reads_its_file_and_counts_its_drops(name):
    rows, problems, dropped, gold = SETS[name]
    found = load(name)
    assert (found.rows, len(found.problems), dict(found.dropped)) == (rows, problems, dropped)
    assert gold is None or found.problems[0].gold == gold
    assert len({problem.id for problem in found.problems}) == problems
    assert all(problem.extra["dataset"] == found.card.name for problem in found.problems)


@pytest.mark.parametrize("name", [name for name in SETS if not name.startswith("humaneval")])
def test_gold_answers_are_right_by_their_verifier(name):
    """Jobs run in this process, without a pool."""
    found = load(name)
    verifier = named_verifier(found.card.verifier)
    wrong = []
    for problem in found.problems:
        verdict = verifier(problem, f"So the answer is $\\boxed{{{problem.gold}}}$.", True)
        if isinstance(verdict, Job):
            module, function = verdict.function.split(":")
            verdict = getattr(importlib.import_module(module), function)(*verdict.arguments)
        wrong += [(problem.id, problem.gold, verdict)] if verdict.reward < 1 else []
    assert len(wrong) <= 0.005 * len(found.problems), wrong


def test_programs_of_humaneval_pass_their_tests():
    found = load("humaneval/test")
    sample = found.problems[::20]
    with Grader(named_verifier("code"), RewardsConfig(workers=2)) as grader:
        pending = [grader.submit(problem, problem.gold, True) for problem in sample]
        verdicts = [each.result() for each in pending]
    assert all(verdict.reward == 1 for verdict in verdicts), list(zip(sample, verdicts, strict=True))


def test_prompts_are_bare_questions():
    for name in ("deepscaler_sub", "simplerl_lvl3to5"):
        prompts = [problem.prompt for problem in load(f"{name}/train").problems]
        assert not any("step by step" in prompt or "<|im_start|>" in prompt for prompt in prompts)
    second = load("aime25/test_oneshot").problems
    assert [problem.gold for problem in second] == [problem.gold for problem in load("aime25/test").problems]


def test_known_overlaps_with_math500_are_found():
    train = {name: load(name).problems for name in ("deepscaler_aime/train", "simplerl_lvl3to5/train")}
    found = overlaps(train, {"math500": load("math500/test").problems})
    assert [len(each.identical) for each in found] == [6, 1]


def test_mixture_of_fr3e_is_drawn_once_per_pass():
    data = load_config(ROOT / "configs" / "mixture_fr3e.yaml", [f"data.root={REAL}"]).data
    train = DatasetsTask(data).problems("train")
    assert len(train) == 8520 + 1909 + 975 + 1205
    alone = PromptStream(train, 0, str.split, 1000).take(1000)
    assert len({prompt.problem.id for prompt in alone}) == 1000


def test_demonstrations_of_gsm8k_have_no_calculator_annotations():
    task = DatasetsTask(DataConfig(task="datasets", root=str(REAL), train=["gsm8k"], template="qwen_boxed"))
    for index in range(200):
        response = task.demonstration(index, 0.0).response
        assert "<<" not in response and "####" not in response and "\nThe final answer is $\\boxed{" in response
