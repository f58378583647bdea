"""The data of a page: every number equals the stored one, and a large run is sampled as the page says."""

import base64
import dataclasses
import gzip
import json
from collections import defaultdict

import numpy as np
import pytest
from made_up_runs import held_out_samples, made_up_run, spending
from reported_runs import STEPS, write_reported_run

from fr3e_jax.runs.rollout_store import write_rollouts
from fr3e_jax.studies.analysis.figure import Figure, Series, TextTable
from fr3e_jax.studies.analysis.run_groups import default_settings
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.held_out_problems import HeldOutAnswer, _change_error, held_out_problems
from fr3e_jax.studies.reports.list_items import entitle
from fr3e_jax.studies.reports.page_limits import PageLimits, evenly
from fr3e_jax.studies.reports.rollout_trees import (
    DECIMALS,
    STRATA,
    Training,
    fork_values,
    prompt_summary,
    prompt_tree,
    stratum,
    tokens_to_keep,
)
from fr3e_jax.studies.reports.run_charts import measured_charts
from fr3e_jax.studies.reports.run_data import collect
from fr3e_jax.studies.reports.settings_table import settings_tables


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "made_up"
    return path, write_reported_run(path)


@pytest.fixture(scope="module")
def content(made_up):
    return collect(StoredRun.open(made_up[0]))


def test_the_metrics_of_a_page_are_explained_by_the_table(content):
    told = {
        (chart["kind"], metric): meaning
        for chart in content.main["charts"]
        for metric, meaning in zip(chart["metrics"], chart["meanings"], strict=True)
    }
    assert told["train", "clip/low"] == "clip/low: trained tokens whose ratio was clipped below (share, 0 to 1)"
    assert told["eval", "greedy"] == "greedy: mean over the greedy answers (reward, higher is better)"
    assert [metric for (_, metric), meaning in told.items() if meaning == metric] == ["my/own"]
    assert told.keys() == {(kind, name) for kind, table in content.main["metrics"].items() for name in table} - {
        ("train", "step"),
        ("eval", "step"),
    }


def test_a_step_that_compiles_runs_out_of_the_axis_and_a_note_has_its_value():
    table = {"step": [*range(1, 11)], "seconds/a": [90.0, *[1.0] * 9], "seconds/b": [None, *[0.5] * 9]}
    (chart,) = measured_charts({"train": table})
    assert (chart["top"], chart["note"], chart["names"]) == (4.5, "Beyond the axis: step 1 (90)", ["a", "b"])
    (even,) = measured_charts({"train": table | {"seconds/a": [1.0] * 10}})
    assert (even["top"], even["note"]) == (None, "")


def test_a_name_of_a_users_own_has_no_explanation():
    (clipped,) = measured_charts({"train": {"step": [1], "clip/low": [0.5]}})
    (own,) = measured_charts({"train": {"step": [1], "mine": [0.5]}})
    assert clipped["meanings"][0].startswith("clip/low: ") and own["meanings"] == ["mine"]


def test_every_rollout_of_a_small_run_is_there_with_its_stored_numbers(made_up, content):
    stored, seen = made_up[1], set()
    for chunk in [*content.prompt_chunks, *content.trunk_chunks, *content.held_out_chunks]:
        tree = unpacked(chunk)
        start = 0
        for n, identity in enumerate(tree["id"]):
            record = stored[identity]
            seen.add(identity)
            end = start + tree["tokens"][n]
            assert tree["token_ids"][start:end] == list(record.token_ids)
            for name, column in (("logprobs", record.logprobs), ("entropies", record.entropies)):
                expected = np.round(np.asarray(column, np.float64), DECIMALS[name])
                np.testing.assert_array_equal(np.asarray(tree[name][start:end]) / 10 ** DECIMALS[name], expected)
            for name in ("reward", "advantage", "value", "alpha", "fork", "anchors", "outcome", "parent", "answers"):
                assert tree[name][n] == getattr(record, name), (identity, name)
            start = end
        assert start == len(tree["token_ids"])
    assert seen == set(stored)


def test_pieces_of_tokens_make_the_text_that_the_codec_decodes(made_up, content):
    run = StoredRun.open(made_up[0])
    vocabulary = content.main["vocabulary"]
    for record in made_up[1].values():
        joined = b"".join(
            piece.encode() if isinstance(piece, str) else bytes(piece)
            for piece in (vocabulary[str(token)] for token in record.token_ids)
        )
        assert joined.decode() == run.codec.decode(record.token_ids, special_tokens=True)
    assert [0xF0] in vocabulary.values()  # the first byte of an emoji is no text


def test_metrics_are_columns_with_none_where_a_record_lacks_one(content):
    train, evaluations = content.main["metrics"]["train"], content.main["metrics"]["eval"]
    assert train["step"] == [1, 2, 3] and train["reward/mean"] == [0.1, 0.2, 0.3]
    assert evaluations["greedy"] == [0.25, 0.75] and "kind" not in train


def test_a_long_run_is_thinned_at_equal_distances(made_up):
    assert evenly(range(100), 4) == [0, 33, 66, 99] and evenly([1, 2], 4) == [1, 2]
    main = collect(StoredRun.open(made_up[0]), limits=PageLimits(metric_records=2, problems=1)).main
    assert main["metrics"]["train"]["step"] == [1, STEPS]
    assert main["steps_note"] == f"2 of {STEPS} steps, at equal distances."
    assert len(main["held_out"]["problems"]) == 1 and main["held_out"]["stored_problems"] == 2


def test_summary_of_a_prompt_counts_changes_and_flips_of_values(made_up):
    records = [record for record in made_up[1].values() if record.step == 1 and record.prompt_position == 10]
    summary = prompt_summary(records)
    # V(S_0) = 0.25, V(S_1) = 2/3, V(S_2) = 0: both steps cross one half.
    assert summary["delta"] == pytest.approx(2 / 3, abs=1e-6) and summary["flips"] == 2
    assert [summary[name] for name in ("rollouts", "answers", "right", "verdicts", "states")] == [10, 4, 1, 4, 2]
    assert summary["lengths"] == [4, max(r.fork + len(r.token_ids) for r in records)]
    assert summary["outcomes"] == ["right", "wrong"] and summary["rewards"] == [0.0, 1.0]
    # 0.25, 0.375, 0: no value is on the other side of one half.
    lower = [dataclasses.replace(record, value=0.375) if record.state == 1 else record for record in records]
    assert (prompt_summary(lower)["delta"], prompt_summary(lower)["flips"]) == (0.375, 0)


def test_states_that_are_explored_and_visited_in_one_step_stay_apart(made_up):
    """Both kinds number their states from 1."""
    record = next(record for record in made_up[1].values() if record.kind == "state" and record.step == 1)
    explored, visited = (
        dataclasses.replace(record, id=f"{record.parent}/{state}/0", state=1, fork=2, value=value)
        for state, value in (("1", 0.25), ("1/1", 0.75))
    )
    assert prompt_summary([explored, visited])["states"] == 2
    assert fork_values([explored, visited]) == {record.parent: {2: 0.5}}


@pytest.mark.parametrize("order", [1, -1])
def test_the_value_of_a_fresh_first_state_is_its_own(made_up, order):
    base = next(record for record in made_up[1].values() if record.kind == "base")
    of_state = {"kind": "state", "parent": base.id, "advantage": None}
    fresh = dataclasses.replace(base, id=f"{base.id}/0/0", state=0, fork=0, value=0.125, **of_state)
    later = dataclasses.replace(base, id=f"{base.id}/1/0", state=1, fork=1, value=0.75, **of_state)
    values = {base.id: {0: 0.125, 1: 0.75}}
    assert fork_values([base, *[fresh, later][::order]]) == values and base.value != 0.125
    assert fork_values([base, later]) == {base.id: {0: base.value, 1: 0.75}}


def test_rollouts_that_do_not_train_say_why(made_up):
    base = next(record for record in made_up[1].values() if record.kind == "base")
    state = dataclasses.replace(base, kind="state", kept=False, advantage=None)
    assert Training(train_states=False).of_rollout(state) == "no" and Training().of_rollout(state) == "equal"
    kept, left = (dataclasses.replace(base, kept=kept, advantage=None) for kept in (True, False))
    assert [Training(selected=True).of_rollout(record) for record in (kept, left)] == ["yes", "unselected"]
    tree = prompt_tree([dataclasses.replace(base, advantage=0.0)], 100, str, training=Training(has_advantages=False))
    assert tree["advantage"] == [None] and tree["trained"] == ["yes"], "the update made others"


def test_strata_name_the_rarest_kind_that_fits(made_up):
    by_prompt = defaultdict(list)
    for record in made_up[1].values():
        if record.step == 1:
            by_prompt[record.prompt_position].append(record)
    kinds = [stratum(by_prompt[position]) for position in sorted(by_prompt) if position >= 10]
    assert kinds == ["explored", "mixed", "trouble", "all_right", "all_wrong"]
    returned = [record for record in made_up[1].values() if record.parent == "1/11/0"]
    assert stratum(returned) == "returned" and stratum([*by_prompt[11], *returned]) == "explored"


def test_tokens_beyond_the_limit_are_left_out_and_parents_keep_theirs(made_up):
    records = [record for record in made_up[1].values() if record.step == 1 and record.prompt_position == 10]
    limit = len(records[0].token_ids) + len(records[1].token_ids)
    tree = prompt_tree(records, limit, str)
    kept = [record.id for record, tokens in zip(records, tree["tokens"], strict=True) if tokens]
    assert kept[0] == "1/10/0" and len(kept) == 2 and len(tree["token_ids"]) <= limit
    assert tree["length"] == [len(record.token_ids) for record in records] and tree["reward"][-1] == records[-1].reward
    assert tokens_to_keep(records, 10**6) == [True] * 10 and sum(tokens_to_keep(records, 1)) == 1


def test_visits_to_a_kept_success_are_one_entry_a_step_with_its_trunk(content):
    addresses = [(prompt["step"], prompt["position"]) for prompt in content.main["prompts"]]
    assert len(set(addresses)) == len(addresses) and addresses == sorted(addresses)
    tree = unpacked(content.prompt_chunks[addresses.index((3, 13))])
    assert tree["fork"] == [2, 2, 5, 5] and set(tree["parent"]) == {"1/13/0"}
    trunk = unpacked(content.trunk_chunks[content.main["trunks"]["1/13/0"]])
    assert (trunk["id"], trunk["step"], len(trunk["token_ids"])) == (["1/13/0"], [1], len("answer 0") + 1)
    # (step, fork, right, all) of each state of every visit
    assert content.main["visits"]["1/13/0"] == [(2, 4, 1, 2), (2, 6, 2, 2), (3, 2, 1, 2), (3, 5, 2, 2)]
    assert content.main["visits"].keys() == content.main["trunks"].keys() == {"1/11/0", "1/13/0"}


def test_prompts_of_each_stratum_are_drawn_by_turns_where_a_page_is_too_small(made_up, content):
    sizes = [len(chunk) for chunk in content.prompt_chunks]
    limits = PageLimits(prompt_bytes=sum(sizes) // 2, held_out_bytes=0)
    small = collect(StoredRun.open(made_up[0]), limits=limits)
    assert sum(map(len, small.prompt_chunks)) <= limits.prompt_bytes
    account = small.main["sampling"]
    assert account["prompts_shown"] == len(small.main["prompts"]) < len(content.main["prompts"]) == 7 * STEPS - 2
    assert account["prompts_read"] == dict.fromkeys(STRATA, 0) | {
        "trouble": 3,
        "explored": 3,
        "returned": 4,
        "mixed": 3,
        "all_wrong": 3,
        "all_right": 3,
    }
    assert {"trouble", "explored"} <= {tag for prompt in small.main["prompts"] for tag in prompt["tags"]}
    assert small.held_out_chunks == [] and len(small.main["held_out"]["problems"]) == 2
    assert collect(StoredRun.open(made_up[0]), limits=limits).prompt_chunks == small.prompt_chunks


def test_held_out_problems_show_when_they_were_solved(content):
    table = content.main["held_out"]
    assert table["steps"] == [0, STEPS]
    learned, unsolved = table["problems"]
    assert (learned["course"], learned["greedy"], learned["right"]) == ("learned", [False, True], [[0, 2], [1, 2]])
    assert (unsolved["course"], unsolved["greedy"]) == ("unsolved", [False, False])
    assert unpacked(content.held_out_chunks[int(learned["chunk"].removeprefix("held-out-"))])["step"] == [
        0,
        0,
        0,
        STEPS,
        STEPS,
        STEPS,
    ]


def test_held_out_answers_that_have_no_room_for_their_numbers_keep_their_texts(made_up, content):
    whole = sum(map(len, content.held_out_chunks))
    lean = collect(StoredRun.open(made_up[0]), limits=PageLimits(held_out_bytes=whole - 200))
    trees = [unpacked(chunk) for chunk in lean.held_out_chunks]
    assert [bool(tree["logprobs"]) for tree in trees] == [True, False] and all(tree["token_ids"] for tree in trees)
    sentence = lean.main["held_out"]["sentence"]
    assert "with the answers to all of them. Of 1 of these the texts are here, without log-probs" in sentence
    none = collect(StoredRun.open(made_up[0]), limits=PageLimits(held_out_bytes=0)).main["held_out"]
    assert "with the answers to 0 of them" in none["sentence"]
    assert [problem["facts"][-1] for problem in none["problems"]] == ["no text here"] * 2


def test_an_entry_of_a_list_has_the_filters_that_it_passes_and_its_place_in_each_order(content):
    by_address = {item["address"]: item for item in content.main["prompts"]}
    tags = {address: {*item["tags"]} for address, item in by_address.items() if address.startswith("2/")}
    assert tags == {
        "2/20": {"mixed", "explored", "flips", "right", "wrong"},
        "2/21": {"mixed", "right", "wrong"},
        "2/22": {"trouble", "ungraded", "timeout"},
        "2/23": {"all_right", "right"},
        "2/24": {"all_wrong", "cut", "no_answer"},
        "2/13": {"mixed", "returned", "right", "wrong"},
        "2/11": {"all_right", "returned", "right"},
    }
    ranked = sorted(tags, key=lambda address: by_address[address]["order"]["hardest"])
    assert ranked[0] == "2/24" and ranked[-1] == "2/22"
    filters = dict(content.main["lists"]["prompts"]["filters"])
    assert filters["timeout"] == "some: verifier timed out" and set().union(*tags.values()) <= {*filters}


def test_settings_of_the_command_line_come_before_those_of_the_recipe_and_the_usual_ones():
    settings = default_settings() | {"seed": 7, "name": "a", "training.max_steps": 3}
    provenance = {"command": "fr3e train x.yaml training.max_steps=3 seed=7 --note='a b' model.none=1"}
    said, recipe, origin, usual = settings_tables(settings, provenance)
    assert said["rows"] == [
        ("seed", "7", "0"),
        ("training.max_steps", "3", str(default_settings()["training.max_steps"])),
    ]
    assert recipe["rows"] == [("name", "a", default_settings()["name"])] and usual["folded"]
    assert len(usual["rows"]) == len(settings) - 3 and origin["rows"] == [("command", provenance["command"])]
    assert settings_tables(settings, {"command": "an open 'quote"})[0]["rows"] == []


def test_findings_are_there_with_all_fields_and_those_too_large_are_named(made_up):
    series = [Series("s", [1, 2], [0.5, None], [0, None], [1, None])]
    line = Figure(name="a", title="A", x_label="x", y_label="y", series=series, source="P")
    table = TextTable(name="t", title="T", columns=["token", "n"], cells=[["<b>", 3]])
    large = TextTable(name="l", title="Large", columns=["n"], cells=[[n * 7919 % 10007] for n in range(20_000)])
    main = collect(StoredRun.open(made_up[0]), [line, large, table], PageLimits(finding_bytes=5000)).main
    assert main["findings"] == [
        {"type": "Figure"} | dataclasses.asdict(line),
        {"type": "TextTable"} | dataclasses.asdict(table),
    ]
    assert main["findings_note"] == "Too large for this page, see fr3e analyse: Large"


def test_entries_that_share_their_question_are_told_apart():
    shared = [{"question": "00>", "gold": gold, "problem": f"train/{n}"} for n, gold in enumerate(("49", "", "49"))]
    alone = {"question": "1+1=", "gold": "2", "problem": "train/9"}
    items = entitle([*shared, alone, alone | {"gold": ""}])  # the last is the same problem in a later step
    assert [item.get("title") for item in items] == ["00> (49)", "00> (train/1)", "00> (49)", None, None]


def test_a_run_without_tokenizer_and_rollouts_has_a_page_too(tmp_path, made_up):
    path = tmp_path / "bare"
    records = write_reported_run(path)
    (path / "tokenizer" / "tokenizer.json").write_text("{")
    assert collect(StoredRun.open(path)).main["vocabulary"] is None
    for file in (path / "rollouts").iterdir():
        file.unlink()
    bare = collect(StoredRun.open(path))
    assert bare.prompt_chunks == [] and bare.main["held_out"] is None and bare.main["sampling"]["steps_stored"] == 0
    write_rollouts(StoredRun.open(path).directory, 1, [])  # a step that carried rollouts trained it
    assert collect(StoredRun.open(path)).main["sampling"]["steps_read"] == [1] and records


def test_the_error_of_a_change_is_that_of_the_same_problems(tmp_path):
    path = made_up_run(
        tmp_path / "run",
        training={2: spending(100)},
        evaluations={step: {"avg@2": 0.5, "greedy": 0.5} for step in (0, 2)},
    )
    before, after = [[0.0, 0.0, 0.0]] * 20, [[1.0, 1.0, float(n % 2)] for n in range(20)]
    for step, rewards in ((0, before), (2, after)):
        held_out_samples(path, step, {("set", n): row for n, row in enumerate(rewards)})
    table, _ = held_out_problems(StoredRun.open(path), PageLimits(), set())
    changes = [(row[1] + row[2]) / 2 for row in after]
    assert table["change_error"] == {"greedy": 0.0, "avg": pytest.approx(np.std(changes, ddof=1) / np.sqrt(20))}
    assert [problem["since"] for problem in table["problems"]] == [2] * 20
    answers = lambda *rewards: [HeldOutAnswer(sample, False, reward) for sample, reward in enumerate(rewards)]
    graded = {  # partly right, of two sets, one without samples
        ("set", n): {0: answers(0.5, 0.25), 2: answers(0.5, 0.25 + n % 3 / 10)} for n in range(20)
    } | {("greedy", n): {0: answers(0.5), 2: answers(0.5 + n % 2 / 10)} for n in range(10)}
    errors = [np.std([n % d / 10 for n in range(m)], ddof=1) / np.sqrt(m) for d, m in ((3, 20), (2, 10))]
    assert _change_error(graded, 0, 2) == pytest.approx({"greedy": errors[1] / 2, "avg": np.hypot(*errors) / 2})
    assert table["sentences"][0]["text"] == "learned, by the greedy answer: 20 problems (20 since step 2)"
