"""``fr3e show``: what the policy said."""

import shutil

import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.cli import main
from fr3e_jax.configuration import Config
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.verdicts import answer_reader
from fr3e_jax.verbs.show import prompt_lines


@pytest.fixture
def show(capsys):
    def call(*arguments):
        code = main(["show", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_every_response_of_a_step_is_printed_with_its_reward(show, finished_run):
    code, text, _ = show(finished_run, "--step", 2, "--prompts", 99)
    records = read_rollouts(finished_run / "rollouts" / "step_000002.jsonl.gz")
    assert code == 0
    lines = text.splitlines()
    assert sum(line.startswith("  base ") for line in lines) == sum(r.kind == "base" for r in records)
    assert sum("  | " in line for line in lines) == sum(r.kind == "state" for r in records)
    for record in records:
        for shown in (record.response, record.prompt, record.prefix):
            assert shown.replace("\n", "\\n") in text


def test_a_state_shows_the_prefix_that_its_rollouts_continue(show, finished_run):
    records = read_rollouts(finished_run / "rollouts" / "step_000002.jsonl.gz")
    by_id = {record.id: record for record in records}
    states = [record for record in records if record.kind == "state"]
    assert states
    for record in states:
        base = by_id[record.parent]
        assert base.response.startswith(record.prefix) and len(record.prefix) >= 1
        assert record.prompt == base.prompt and record.gold == base.gold


def test_one_problem_and_the_newest_step(show, finished_run):
    _, text, _ = show(finished_run, "--prompts", 1)
    name = text.split(" (")[0]
    assert "(step 4, gold " in text.splitlines()[0]
    _, one, _ = show(finished_run, "--problem", name)
    assert one == text


def test_held_out_responses_begin_with_the_greedy_one(show, finished_run):
    _, text, _ = show(finished_run, "--eval", "--prompts", 1)
    kinds = [line.split()[0] for line in text.splitlines()[1:] if line]
    assert kinds == ["greedy", "eval", "eval", "eval"]


def test_a_run_that_samples_in_evaluations_alone_names_the_option_that_shows_them(show, finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "supervised")
    for path in (run / "rollouts").glob("step_*"):
        path.unlink()
    code, _, error = show(run)
    assert code == 2 and "has no stored rollouts; with --eval it has some" in error


def test_long_texts_are_cut_in_the_middle(finished_run):
    record = next(iter(read_rollouts(finished_run / "rollouts" / "step_000002.jsonl.gz")))
    record.response = "a" * 50 + "\n" + "b" * 50
    assert any("aaa ... bbb" in line for line in prompt_lines([record], 6, str))
    assert any("a\\nb" in line for line in prompt_lines([record], None, str))


def test_a_directory_without_a_run_is_named(show, tmp_path):
    code, _, error = show(tmp_path)
    assert code == 2 and str(tmp_path) in error


def test_a_response_that_is_not_right_says_its_answer_and_the_reason(finished_run):
    record = next(iter(read_rollouts(finished_run / "rollouts" / "step_000002.jsonl.gz")))
    record.outcome, record.reward, record.gold, record.response, record.finished = "wrong", 0.0, "6", "5+2>7", True
    _, line, _ = prompt_lines([record], None, answer_reader({"data.task": "order"}))
    assert "0.00 wrong" in line and "[7: not the gold answer]" in line
    record.outcome = "no_answer"
    assert "[no answer in the place" in "".join(prompt_lines([record], None, answer_reader({})))
    record.outcome = "right"
    assert "[" not in "".join(prompt_lines([record], None, answer_reader({})))


def test_states_of_a_visit_have_a_line_of_their_own():
    """Explored states of a base have the same numbers."""
    states = [
        rollout(1, 0, 0, True, [6, 1], kind="state", id=f"1/0/0/{state}/0", parent="1/0/0", state=1, fork=fork)
        for state, fork in (("1", 2), ("1/1", 3))
    ]
    text = "\n".join(prompt_lines([rollout(1, 0, 0, True, [6, 7, 8, 1]), *states], None, str))
    assert "S_1 after 2 tokens" in text and "S_1 after 3 tokens" in text


REPLACED = [
    {"advantage.base_estimator": "gae"},
    {"advantage.normalise_batch": True},
    {"kl.place": "reward", "kl.coefficient": 0.1},
    {"teacher.path": "model", "teacher.place": "advantage"},
    {"teacher.path": "model", "teacher.alone": True},
]


@pytest.mark.parametrize("settings", [{}, {"kl.place": "reward", "kl.coefficient": 0.0}, *REPLACED])
def test_advantages_that_the_update_replaces_are_not_shown(show, tmp_path, settings):
    config = Config(name="small")
    for path, value in settings.items():
        section, name = path.split(".")
        setattr(getattr(config, section), name, value)
    run = made_up_run(tmp_path / "run", rollouts=[rollout(1, 0, 0, True, [6, 1], advantage=0.25)], config=config)
    assert run.has_advantages == (settings not in REPLACED)
    assert ("+0.25" in show(tmp_path / "run")[1]) == run.has_advantages
    assert bool([*findings(run, only=["advantages_over_steps"])]) == run.has_advantages
