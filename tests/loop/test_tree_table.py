"""The table of sampled trees that trackers show."""

from fr3e_jax.loop.tree_table import COLUMNS, held_out_table, tree_table
from fr3e_jax.runs.rollout_store import RolloutRecord


def record(position, name, **changes):
    values = {"id": name, "step": 1, "kind": "base", "prompt_position": position, "problem_id": "p", "base": 0}
    values |= {"prompt_ids": [9], "token_ids": [1, 2, 3], "logprobs": [0.0] * 3, "entropies": [0.0] * 3}
    return RolloutRecord(**values | {"reward": 1.0, "finished": True} | changes)


def decode(ids):
    return "".join(map(str, ids))


def test_a_branch_shows_the_prefix_that_it_shares_with_its_base():
    state = {"kind": "state", "parent": "a", "fork": 2, "reward": 0.0, "advantage": -0.5, "value": 0.25, "alpha": 1.5}
    columns, rows = tree_table([record(0, "a", anchors=[2]), record(0, "a/1/0", **state)], decode)
    base, branch = (dict(zip(columns, row, strict=True)) for row in rows)
    assert (base["prompt"], base["prefix"], base["text"], base["anchors"]) == ("9", "", "123", "2")
    assert (branch["prefix"], branch["text"], branch["fork"], branch["advantage"]) == ("12", "123", 2, -0.5)
    assert (branch["value"], branch["alpha"], branch["reward"]) == (0.25, 1.5, 0.0)


def test_prompts_that_train_come_first_and_others_when_there_is_nothing_else():
    records = [record(0, "a", kept=False), record(1, "b"), record(2, "c")]
    name = COLUMNS.index("rollout")
    assert [row[name] for row in tree_table(records, decode, prompts=1)[1]] == ["b"]
    assert [row[name] for row in tree_table(records[:1], decode)[1]] == ["a"]


def test_a_held_out_problem_shows_its_greedy_answer_and_the_share_of_right_samples():
    members = [record(3, "g", base=0, outcome="right"), record(3, "a", base=1, reward=0.0, outcome="wrong")]
    members += [record(3, "b", base=2, outcome="right"), record(5, "h", base=0, reward=0.0, outcome="wrong")]
    columns, rows = held_out_table(members, decode)
    first, second = (dict(zip(columns, row, strict=True)) for row in rows)
    assert (first["greedy answer"], first["greedy reward"], first["right samples"]) == ("123", 1.0, "1 of 2")
    assert first["mean reward of samples"] == 0.5 and second["mean reward of samples"] is None
