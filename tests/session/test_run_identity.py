"""Every change of a run's data, tokenizer and files changes its identity; a change of place does not."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil

import pytest

from fr3e_jax.configuration import Config, ConfigError
from fr3e_jax.data.task import load_task
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.policy.architecture import PUBLISHED, Architecture
from fr3e_jax.policy.rotary import RopeScaling
from fr3e_jax.problem import Problem
from fr3e_jax.session import run_identity
from fr3e_jax.session.checkpoint_changes import changes, refuse_another_run
from fr3e_jax.session.run_identity import (
    HASHED_COMPUTED_PROBLEMS,
    fingerprint,
    held_out_fingerprints,
    identity,
    network_fields,
    tokenizer_fingerprint,
    user_files,
)
from fr3e_jax.session.run_weights import read_run_params


def problems(count, changed=None):
    return [Problem(id=str(n), prompt=f"{n}=", gold="x" if n == changed else str(n)) for n in range(count)]


def test_a_fingerprint_tells_every_changed_problem_and_the_order():
    assert fingerprint(problems(50)) == fingerprint(problems(50))
    others = [fingerprint(problems(50, changed)) for changed in range(50)]
    others += [fingerprint(problems(49)), fingerprint(problems(50)[::-1])]
    assert len({fingerprint(problems(50)), *others}) == 53


def test_a_fingerprint_of_many_problems_looks_at_a_bounded_number():
    class Many:
        seen = 0

        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            self.seen += 1
            return Problem(id=str(index), prompt="\ud800", gold="")

    many = Many()
    assert fingerprint(many).startswith("1000000000 problems, ")
    assert many.seen == HASHED_COMPUTED_PROBLEMS


def test_a_fingerprint_tells_what_the_verifier_needs_besides_the_gold():
    one, two = (Problem("0", "f", "", {"tests": tests, "value": object()}) for tests in (["1"], ["2"]))
    assert fingerprint([one]) != fingerprint([two])
    assert fingerprint([one]) == fingerprint([Problem("0", "f", "", {"tests": ["1"], "value": object()})])


def test_each_of_several_held_out_sets_has_its_fingerprint():
    sets = {name: [Problem(f"{name}/test/{n}", f"{n}=", "0") for n in range(3)] for name in ("aime24", "math500")}
    both = held_out_fingerprints(sets["aime24"] + sets["math500"], ["aime24", "math500"])
    assert both == {f"{name}/test": fingerprint(own) for name, own in sets.items()}
    assert held_out_fingerprints(sets["aime24"], ["aime24"]) == {"": fingerprint(sets["aime24"])}


def test_a_tokenizer_is_its_files_and_stop_ids_wherever_they_lie(tmp_path):
    embedded = TextCodec.load("")
    embedded.save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = (tokenizer_fingerprint(TextCodec.load(str(tmp_path / name))) for name in ("one", "two"))
    assert one == two and one.startswith("24 tokens, ")
    (tmp_path / "two" / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    with_stop = tokenizer_fingerprint(TextCodec.load(str(tmp_path / "two")))
    file = tmp_path / "one" / "tokenizer.json"
    file.write_text(file.read_text().replace('"*"', '"&"'))
    changed = tokenizer_fingerprint(TextCodec.load(str(tmp_path / "one")))
    assert len({one, with_stop, changed, tokenizer_fingerprint(embedded)}) == 4


def test_files_of_task_verifier_and_tool_count_by_content(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def f(*_): return 1.0")
    config = Config()
    assert user_files(config) == {}, "built-in ones are part of the version"
    config.data.task = config.data.verifier = config.tools.kind = f"{tmp_path}/mine.py:f"
    before = user_files(config)
    assert set(before) == {"data.task", "data.verifier", "tools.kind"} and len(set(before.values())) == 1
    monkeypatch.syspath_prepend(tmp_path)
    config.tools.kind = "mine:f"
    assert user_files(config) == before
    (tmp_path / "mine.py").write_text("def f(*_): return 0.0")
    assert not set(user_files(config).values()) & set(before.values())


@pytest.mark.parametrize("setting", ["num_operands", "sft_min_operands"])
def test_each_setting_of_the_order_task_is_named_with_the_data_that_it_changes(monkeypatch, setting):
    monkeypatch.setattr(run_identity, "HASHED_COMPUTED_PROBLEMS", 30)
    monkeypatch.setattr(run_identity, "HASHED_DEMONSTRATIONS", 30)

    def found(config):
        network = PUBLISHED["qwen2.5-0.5b"]
        return identity(config, load_task(config.data), TextCodec.load(""), network, demonstrations=True)

    before = Config()
    order = dataclasses.replace(before.data.order, **{setting: getattr(before.data.order, setting) - 1})
    after = dataclasses.replace(before, data=dataclasses.replace(before.data, order=order))
    named = [line.split(":")[0] for line in changes(found(before), found(after))]
    others = [] if setting == "sft_min_operands" else ["training data", "held-out data"]
    assert sorted(named) == sorted([f"data.order.{setting}", "demonstrations", *others])


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Architecture)])
def test_each_field_of_the_network_must_stay_as_it_was(name):
    """config.json of ``model.path`` may say something else when a run goes on."""
    network = PUBLISHED["gemma-3-1b"]
    changed, value = copy.copy(network), getattr(network, name)
    others = {"model_type": "gemma2", "rope_scaling": RopeScaling("linear", 4.0), "windows": (8,), "dense_layers": (1,)}
    another = others[name] if name in others else not value if isinstance(value, bool) else value + 1
    object.__setattr__(changed, name, another)  # without the checks of a new network
    rest = {"settings": {}, "held_out_data": {}, "files": {}}
    lines = changes(*(rest | {"network": network_fields(each)} for each in (network, changed)))
    refuse_another_run(lines, allowed=True)
    if name == "max_position_embeddings":
        assert not lines
        return
    assert len(lines) == 1
    with pytest.raises(ConfigError, match=f"network {name}: .* in the checkpoint, .* now. Put them back"):
        refuse_another_run(lines, allowed=False)


def test_weights_of_another_network_are_not_read(finished_run, session):
    network = dataclasses.replace(session.model.architecture, rope_theta=5e5)
    model = dataclasses.replace(session.model, architecture=network)
    with pytest.raises(ValueError, match="now describes: rope_theta=10000.0, now 500000.0; put the former"):
        read_run_params(finished_run, model)
