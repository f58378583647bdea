"""`fr3e data`: tables and JSON, mistakes in one line, and no import of jax."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from fr3e_jax.cli import main

CARD = "name: sums\nverifier: exact\nfields: {question: q, answer: a}\nsplits: {train: rows.jsonl, test: rows.jsonl}\n"


@pytest.fixture
def recipe(tmp_path):
    rows = [{"q": "7=", "a": "[red]"}, *({"q": f"{n}+{n}=", "a": 2 * n} for n in range(20)), {"q": "8=", "a": ""}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "sums.yaml").write_text(CARD)
    data = f"{{task: datasets, root: {tmp_path}, train: [{tmp_path}/sums.yaml], eval: [{tmp_path}/sums.yaml]}}"
    (tmp_path / "recipe.yaml").write_text(f"name: tried\ndata: {data}\n")
    return str(tmp_path / "recipe.yaml")


def test_tables_show_counts_lengths_overlaps_and_prompts(recipe, capsys):
    assert main(["data", recipe, "data.max_prompt_tokens=4"]) == 0
    text = capsys.readouterr().out
    assert "tried: task datasets, template plain, tokenizer embedded characters" in text
    for part in (
        "sums/train",
        "1 empty_gold",
        "100.0 %",
        "exact",
        "> 4",
        "up to     16",
        "limit data.max_prompt_tokens=4",
    ):
        assert part in text, part
    assert re.search(r"\n sums/train +sums/test +21 +0 +0 +100.0 % ", text)
    assert "sums/train/0  (gold answer: [red]) ──" in text and "\n7=\n" in text
    assert max(map(len, text.splitlines())) <= 240


def test_json_lists_every_overlapping_pair(recipe, capsys):
    assert main(["data", recipe, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recipe"] == "tried" and len(found["overlaps"][0]["identical"]) == 21
    assert found["sets"][0]["dropped"] == {"empty_gold": 1} and found["sets"][0]["lengths"]["longest"] == 6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.root=nowhere"], "no file of dataset card sums, split train under data.root=nowhere"),
        (["data.train=[gsm8]"], "data.train: no dataset card 'gsm8'"),
        (["data.template=bare"], "data.template=bare is not a prompt template"),
        (["data.template=chat"], "has no chat template"),
        (["model.tokenizer=nowhere"], "model.tokenizer=nowhere is no directory"),
    ],
)
def test_mistake_is_one_line(recipe, capsys, overrides, message):
    assert main(["data", recipe, *overrides]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("fr3e: error: ") and message in captured.err and captured.err.count("\n") == 1


def test_data_verb_loads_neither_jax_nor_a_model(recipe):
    script = (
        "import sys; from fr3e_jax.cli import main\n"
        f"assert main(['data', {recipe!r}]) == 0\n"
        "sys.exit(' '.join(sorted({'jax', 'flax', 'grain', 'torch', 'sympy'} & set(sys.modules))) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, f"loaded: {ended.stderr}"
