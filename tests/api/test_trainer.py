"""Training from Python: problems, rewards, callbacks, what comes back, and what goes wrong."""

import pytest

import fr3e_jax as fr3e
from fr3e_jax.configuration import ConfigError, to_yaml
from fr3e_jax.loop.callbacks import Callbacks

PROBLEMS = [{"prompt": f"{a}+{b}", "gold": str((a + b) % 10)} for a in range(10) for b in range(10)]


def even(prompt, response, gold):
    """A reward that an untrained policy earns now and then."""
    return float(sum(letter in "02468" for letter in response) % 2 == 0)


@pytest.fixture
def recipe(tmp_path, tiny_run):
    path = tmp_path / "tiny.yaml"
    path.write_text(to_yaml(tiny_run.config(training__max_steps=2, runtime__output_dir=str(tmp_path / "runs"))))
    return path


class Diary(fr3e.Callback):
    def __init__(self, stop_after=None):
        self.events, self.stop_after = [], stop_after

    def on_start(self, run_dir, step):
        self.events.append(("start", step))

    def on_step(self, step, metrics):
        assert "reward/mean" in metrics
        self.events.append(("step", step))
        return step == self.stop_after

    def on_evaluation(self, step, metrics):
        self.events.append(("evaluation", step))

    def on_checkpoint(self, step):
        self.events.append(("checkpoint", step))

    def on_end(self, state, reason):
        self.events.append(("end", state))


def test_problems_a_reward_and_a_callback_of_a_program(recipe):
    diary = Diary()
    trainer = fr3e.Trainer(recipe, reward=even, problems=PROBLEMS, callbacks=[diary], overrides=["seed=3"])
    result = trainer.train()
    assert result.state == "finished" and len(result.history) == 2
    assert [record["step"] for record in result.evaluations] == [0, 2]
    assert result.best_checkpoint is not None and result.best_checkpoint.parent.parent == result.run_dir
    assert diary.events == [
        ("start", 0),
        ("evaluation", 0),
        ("step", 1),
        ("checkpoint", 1),
        ("step", 2),
        ("evaluation", 2),
        ("checkpoint", 2),
        ("end", "finished"),
    ]
    columns = fr3e.read_rollouts(result.run_dir, frame="columns")
    graded = {(prompt, reward) for prompt, reward in zip(columns["prompt"], columns["reward"], strict=True)}
    assert {reward for _, reward in graded} == {0.0, 1.0}
    assert {prompt for prompt, _ in graded} <= {row["prompt"] for row in PROBLEMS}
    assert result.policy().step == 2


def test_a_callback_stops_a_run_and_the_run_goes_on_as_if_uninterrupted(recipe):
    given = dict(reward=even, problems=PROBLEMS)
    whole = fr3e.Trainer(recipe, **given).train()
    stopped = fr3e.Trainer(recipe, callbacks=[Diary(stop_after=1)], **given).train()
    assert stopped.state == "stopped" and len(stopped.history) == 1
    resumed = fr3e.Trainer(recipe, **given).train(resume=stopped.run_dir)
    assert resumed.state == "finished"
    same = ("reward/mean", "entropy/mean", "loss/policy", "tokens/sampled_tokens")
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert {name: one[name] for name in same} == {name: other[name] for name in same}


def test_other_problems_are_refused_at_a_resume(recipe):
    stopped = fr3e.Trainer(recipe, reward=even, problems=PROBLEMS, callbacks=[Diary(stop_after=1)]).train()
    with pytest.raises(fr3e.ConfigError, match="data"):
        fr3e.Trainer(recipe, reward=even, problems=PROBLEMS[:50]).train(resume=stopped.run_dir)


def test_what_a_reward_raises_comes_back_as_it_is(recipe):
    def broken(prompt, response):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as caught:
        fr3e.Trainer(recipe, reward=broken, problems=PROBLEMS).train()
    assert caught.traceback[-1].name == "broken"
    assert any("the reward broken raised on problem" in note for note in caught.value.__notes__)


def test_a_reward_out_of_range_is_an_error_of_its_own(recipe):
    with pytest.raises(fr3e.ConfigError, match="the verifier returned 7"):
        fr3e.Trainer(recipe, reward=lambda prompt, response: 7, problems=PROBLEMS).train()


def test_what_a_callback_raises_comes_back_and_the_run_says_failed(recipe):
    class Broken(fr3e.Callback):
        def on_step(self, step, metrics):
            raise LookupError("in the callback")

    with pytest.raises(LookupError, match="in the callback"):
        fr3e.Trainer(recipe, reward=even, problems=PROBLEMS, callbacks=[Broken()]).train()


def test_a_run_that_fails_raises_with_the_reason(recipe):
    with pytest.raises(fr3e.TrainingFailed, match="rounds"):
        fr3e.Trainer(recipe, reward=lambda prompt, response: 0.0, problems=PROBLEMS).train()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"held_out": PROBLEMS}, "held_out is given without problems"),
        ({"problems": []}, "problems holds no row"),
        ({"problems": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"reward": lambda response: 1.0}, "takes 1 positional"),
        ({"overrides": ["explore.anchors=2"]}, "explore.num_anchors"),
    ],
)
def test_mistakes_are_named_before_anything_starts(recipe, arguments, message):
    with pytest.raises(fr3e.ConfigError, match=message):
        fr3e.Trainer(recipe, **arguments)


class Late(fr3e.Callback):
    def on_checkpoint(self, step, path):
        """The loop gives no path."""


@pytest.mark.parametrize(
    "callback, message",
    [
        (Late(), r"Late.on_checkpoint\(step, path\) cannot be called; expected on_checkpoint\(self, step\)"),
        (Late, "is no fr3e.Callback; expected an object of a class that derives from fr3e.Callback"),
        (print, "is no fr3e.Callback"),
    ],
)
def test_a_callback_that_the_loop_cannot_call_is_refused_before_anything_compiles(recipe, callback, message):
    with pytest.raises(ConfigError, match=message):
        fr3e.Trainer(recipe, callbacks=[callback])


def test_a_callback_that_reads_a_metric_of_another_step_learns_where_it_is_explained():
    class Reader(fr3e.Callback):
        def on_step(self, step, metrics):
            assert metrics.get("reward/mean") is None and metrics["returns/reward"] == 0.5
            return metrics["reward/mean"] > 0.9

    with pytest.raises(KeyError, match="this step did not write reward/mean: `fr3e metrics reward/mean` says when"):
        Callbacks([Reader()]).on_step(3, {"returns/reward": 0.5})


class Even:
    """Two turns; a turn with an even number of even digits earns a half."""

    def reset(self, problem, seed):
        self.turns = 0
        return f"{problem.prompt}="

    def step(self, text):
        self.turns += 1
        return "+", sum(letter in "02468" for letter in text) % 2 == 0 and 0.5, self.turns == 2


ACTING = ["environment.turn_end=5", "environment.max_observation_tokens=2", "training.max_steps=1"]


def test_an_environment_of_a_program_gives_the_prompts_and_the_rewards(recipe):
    result = fr3e.Trainer(recipe, problems=PROBLEMS, environment=Even, overrides=ACTING).train()
    assert result.state == "finished"
    rows = fr3e.read_rollouts(result.run_dir, frame="columns")
    assert set(rows["reward"]) <= {0.0, 0.5, 1.0} and len(set(rows["reward"])) > 1
    assert set(rows["prompt"]) <= {f"{row['prompt']}=" for row in PROBLEMS}
    assert any(rows["turns"])
    assert all(0 < record["environment/turns"] <= 2 for record in result.history)
    with pytest.raises(ConfigError, match="reward and environment are both given"):
        fr3e.Trainer(recipe, problems=PROBLEMS, environment=Even, reward=even, overrides=ACTING)
    with pytest.raises(ConfigError, match=r"environment.kind=task gives the rewards; return the reward from step\(\)"):
        fr3e.Trainer(recipe, problems=PROBLEMS, reward=even, overrides=["environment.kind=task", *ACTING])
    forgotten = fr3e.Trainer(recipe, problems=PROBLEMS, overrides=["environment.kind=task", *ACTING])
    with pytest.raises(ConfigError, match=r"task 'python' has no environment; .* or Trainer\(environment=...\)"):
        forgotten.train()
