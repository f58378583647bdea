"""Training from Python: problems, rewards, callbacks, what comes back, and what goes wrong."""

import jax.numpy as jnp
import numpy as np
import pytest

import fr3e_jax as fr3e
from fr3e_jax.configuration import ConfigError, to_yaml
from fr3e_jax.loop.callbacks import Callbacks, check_callbacks
from fr3e_jax.runs.declared_metrics import STRICT
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.run_data import collect

COLUMNS = ("step", "prompt", "prefix", "response", "reward")

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


class Counting(fr3e.Callback):
    """Adds a metric to each step, a number of NumPy."""

    def on_step(self, step, metrics):
        return {"mine/twice": np.float32(2 * step)}

    def on_evaluation(self, step, metrics):
        return {"mine/solved": 2 * metrics["greedy"]}


def short(prompt, response, **columns):
    assert prompt.startswith("system: 10\n\nuser: ") and prompt.messages[1]["content"] in QUESTIONS
    return 1 - len(response) / 50


QUESTIONS = [row["prompt"] for row in PROBLEMS]
MESSAGES = [
    row | {"prompt": [{"role": "system", "content": "10"}, {"role": "user", "content": row["prompt"]}]}
    for row in PROBLEMS
]


def test_problems_rewards_and_callbacks_of_a_program(recipe, chatting, monkeypatch):
    """The questions are messages, the rewards two functions, the overrides texts and a mapping of sections."""
    monkeypatch.delenv(STRICT)  # callbacks may add metrics of any name
    diary = Diary()
    trainer = fr3e.Trainer(
        recipe,
        reward=[even, (short, 2.0)],
        problems=MESSAGES,
        callbacks=[diary, Counting()],
        overrides=[*chatting, {"seed": 3, "rollout": {"max_response_tokens": np.int64(9)}}],
    )
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
    for kind, records in (("train", result.history), ("eval", result.evaluations)):
        columns = fr3e.read_rollouts(result.run_dir, frame="columns", kind=kind)
        for record in records:
            graded = [
                (prompt, prefix + response, reward)
                for step, *texts, reward in zip(*(columns[name] for name in COLUMNS), strict=True)
                if step == record["step"]
                for prompt, prefix, response in [texts]
            ]
            evens, shorts = (
                [f(r) for _, r, _ in graded] for f in (lambda r: even("", r, ""), lambda r: 1 - len(r) / 50)
            )
            assert record["rewards/even"] == pytest.approx(np.mean(evens))
            assert record["rewards/short"] == pytest.approx(np.mean(shorts))
            for (prompt, _, reward), one, other in zip(graded, evens, shorts, strict=True):
                assert reward == pytest.approx((one + 2 * other) / 3)
                assert prompt[:4] == "%10(" and prompt[4:-1] in QUESTIONS and prompt[-1] == ")"
    assert [record["mine/twice"] for record in result.history] == [2, 4]
    assert [record["mine/solved"] for record in result.evaluations] == [
        2 * record["greedy"] for record in result.evaluations
    ]
    page = collect(StoredRun.open(result.run_dir), []).main["metrics"]
    assert {"mine/twice", "rewards/even"} <= set(page["train"]) and "mine/solved" in page["eval"]
    lines = repr(result).splitlines()
    assert len(lines) == 5 and lines[0] == "finished after 2 steps" and lines[4] == f"run       {result.run_dir}"
    assert f"{result.history[0]['reward/mean']:.3f} -> {result.history[1]['reward/mean']:.3f}" in lines[1]
    assert f"greedy {result.evaluations[0]['greedy']:.1%} -> {result.evaluations[1]['greedy']:.1%}" in lines[2]
    assert str(result.best_checkpoint) in lines[3]
    assert result.policy().step == 2


def test_a_callback_stops_a_run_and_the_run_goes_on_as_if_uninterrupted(recipe):
    given = dict(reward=even, problems=PROBLEMS)
    whole = fr3e.Trainer(recipe, **given).train()
    stopped = fr3e.Trainer(recipe, callbacks=[Diary(stop_after=1)], **given).train()
    assert stopped.state == "stopped" and len(stopped.history) == 1
    trainer = fr3e.Trainer(recipe, **given)
    resumed = trainer.train(resume=stopped.run_dir)
    assert resumed.state == "finished" and trainer.train().run_dir != resumed.run_dir, "no resume, another run"
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


def test_a_reward_out_of_range_is_named(recipe):
    def seven(prompt, response):
        return 7

    with pytest.raises(fr3e.ConfigError, match=r"the reward seven returned 7 for problem .*; expected a finite number"):
        fr3e.Trainer(recipe, reward=[even, (seven, 0.01)], problems=PROBLEMS).train()


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
        ({"overrides": {"explore.anchors": 2}}, "overrides: explore.anchors is not a setting; .*explore.num_anchors"),
        ({"overrides": {"explore": {"anchors": 2}}}, "overrides: explore.anchors is not a setting"),
        ({"overrides": {"explore": 2}}, "overrides: explore is a section, not a value"),
        ({"overrides": {"explore.num_anchors": "many"}}, "explore.num_anchors"),
        ({"overrides": {"explore.num_anchors": True}}, "explore.num_anchors"),
        ({"overrides": {"explore.num_anchors": 2.5}}, "explore.num_anchors"),
        ({"overrides": {"data.train": {"a": 1}}}, "data.train"),
        ({"overrides": [("seed", 3)]}, r"overrides: \('seed', 3\) is neither key=value nor a mapping"),
        ({"overrides": "seed"}, "'seed' is not key=value"),
        (
            {"problems": [{"prompt": [{"role": "wizard", "content": "1"}]}]},
            "its prompt has in message 0 the role 'wizard'",
        ),
    ],
)
def test_mistakes_are_named_before_anything_starts(recipe, arguments, message):
    with pytest.raises(fr3e.ConfigError, match=message):
        fr3e.Trainer(recipe, **arguments)


def callback(**methods):
    return type("Mine", (fr3e.Callback,), methods)()


async def later(self, step, metrics):
    """Nobody awaits this."""


@pytest.mark.parametrize(
    "callback, message",
    [
        (
            callback(on_checkpoint=lambda self, step, path: None),
            r"Mine.on_checkpoint\(step, path\) cannot be called; exp",
        ),
        (callback(on_step=None), "Mine.on_step is None; expected an ordinary method"),
        (callback(on_step=later), "Mine.on_step is async; expected an ordinary method"),
        (fr3e.Callback, "is no fr3e.Callback; expected an object of a class that derives from fr3e.Callback"),
        (print, "is no fr3e.Callback"),
        *(
            (
                callback(**{name: lambda self, step, metrics: None}),
                f"the loop calls no Mine.{name}; nearest: {hook}, or",
            )
            for name, hook in {
                "on_stp": "on_step",
                "on_steps": "on_step",
                "onStep": "on_step",
                "on_Step": "on_step",
                "onstep": "on_step",
                "no_step": "on_step",
                "on_step_end": "on_step",
                "on_evaluate": "on_evaluation",
                "on_evalution": "on_evaluation",
                "on_checkpoints": "on_checkpoint",
                "on_started": "on_start",
                "on_ends": "on_end",
            }.items()
        ),
        (callback(on_log=print), "the loop calls no Mine.on_log; expected one of on_start, on_step, "),
        (callback(on_train_begin=print), "the loop calls no Mine.on_train_begin; "),
    ],
)
def test_a_callback_that_the_loop_cannot_call_is_refused_before_anything_compiles(recipe, callback, message):
    with pytest.raises(ConfigError, match=message):
        fr3e.Trainer(recipe, callbacks=[callback])


def test_other_methods_and_attributes_of_a_callback_are_its_own():
    own = callback(step=print, steps=3, evaluate=print, checkpoint=print, _on_step=print, done=print, ending=print)
    check_callbacks([own])


@pytest.mark.parametrize(
    "answer, metrics, stop",
    [
        (None, {}, False),
        (False, {}, False),
        (True, {}, True),
        (np.bool_(True), {}, True),
        ({}, {}, False),
        ({"mine/a": 1, "b": jnp.float32(0.5), "c": True}, {"mine/a": 1.0, "b": 0.5, "c": 1.0}, False),
        ({"mine/a": float("inf")}, {"mine/a": float("inf")}, False),
        (0.3, "Mine.on_step returned 0.3; expected True to stop, None, or metrics by name", None),
        ("stop", "returned 'stop'; expected True to stop", None),
        ([("a", 1)], "expected True to stop, None, or metrics by name", None),
        ({"a": "high"}, "returned 'high' for the metric 'a'; expected a number", None),
        ({"a": None}, "returned None for the metric 'a'; expected a number", None),
        ({"a": [1, 2]}, "for the metric 'a'; expected a number", None),
        ({"a": np.zeros(2)}, "for the metric 'a'; expected a number", None),
        ({"reward/mean": 1.0}, "the metric 'reward/mean', which is in the record already; rename it", None),
        ({"step": 1}, "the metric 'step', which is no name for a metric", None),
        ({3: 1.0}, "the metric 3, which is no name for a metric", None),
        ({"": 1.0}, "the metric '', which is no name for a metric", None),
    ],
)
def test_a_callback_may_stop_the_run_or_add_metrics(answer, metrics, stop):
    ask = Callbacks([callback(on_step=lambda self, step, metrics: answer)]).on_step
    if stop is not None:
        assert ask(1, {"reward/mean": 0.5}) == (metrics, stop)
        return
    with pytest.raises((TypeError, ValueError), match=metrics):
        ask(1, {"reward/mean": 0.5})


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
