"""The shipped cards read the public datasets in their own formats and folders, imitated by small files."""

from __future__ import annotations

import json

import pytest

from fr3e_jax.data.cards import load_named
from fr3e_jax.data.dataset_split import load_split
from fr3e_jax.data.templates import load_template

GSM8K = {"question": "How many?", "answer": "6*7=<<6*7=42>>42\n#### 42"}


def load(name, root):
    return load_split(*load_named(name, "train"), str(root))


def write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def verl_row(prompt, answer, **more):
    row = {"data_source": "x", "prompt": [{"content": prompt, "role": "user"}], "ability": "math"}
    return (
        row | {"reward_model": {"ground_truth": answer, "style": "rule"}, "extra_info": {"index": 0, "level": 1}} | more
    )


def user_message(template, question):
    return load_template(template).render(question, lambda messages: messages[0]["content"])


def test_gsm8k_reads_parquet_shards_of_the_hub(tmp_path):
    for shard in (0, 1):
        write_parquet(tmp_path / f"gsm8k/main/train-0000{shard}-of-00002.parquet", [GSM8K | {"question": f"Q{shard}?"}])
    found = load("gsm8k", tmp_path)
    assert [(problem.prompt, problem.gold) for problem in found.problems] == [("Q0?", "42"), ("Q1?", "42")]
    assert found.solutions[0] == "6*7=42\n#### 42"


def test_gsm8k_reads_the_file_of_its_repository(tmp_path):
    path = tmp_path / "grade_school_math" / "data" / "train.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(GSM8K) + "\n")
    assert load("gsm8k", tmp_path).problems[0].gold == "42"


def test_gsm8k_reads_tfds_without_tensorflow(tmp_path):
    import tensorflow_datasets as tfds

    class Gsm8k(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            names = ("question", "answer", "annotation", "short_answer")
            features = tfds.features.FeaturesDict({name: tfds.features.Text() for name in names})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(), "test": self._generate_examples()}

        def _generate_examples(self):
            for i in range(3):
                annotation, short = GSM8K["answer"].split("#### ")
                yield i, GSM8K | {"question": f"Q{i}?", "annotation": annotation, "short_answer": short}

    Gsm8k(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    found = load("gsm8k/tfds_train", tmp_path)
    assert sorted(problem.prompt for problem in found.problems) == ["Q0?", "Q1?", "Q2?"]
    assert {problem.gold for problem in found.problems} == {"42"} and found.name == "gsm8k/tfds_train"


def test_hendrycks_math_reads_one_file_per_problem(tmp_path):
    for number, (level, box) in enumerate(
        [("Level 5", "\\boxed{\\frac{1}{2}}"), ("Level 2", "\\boxed 7"), ("Level ?", "7")]
    ):
        path = tmp_path / "MATH" / "train" / "algebra" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"problem": f"Find {number}.", "level": level, "type": "Algebra", "solution": f"Clearly ${box}$."}
        path.write_text(json.dumps(row))
    found = load("math", tmp_path)
    assert [(problem.gold, problem.extra["level"]) for problem in found.problems] == [("\\frac{1}{2}", "5"), ("7", "2")]
    assert found.dropped == {"unreadable_gold": 1} and found.problems[0].extra["subject"] == "Algebra"


def test_rllm_reads_json_lists(tmp_path):
    path = tmp_path / "rllm" / "data" / "train" / "math" / "math.json"
    path.parent.mkdir(parents=True)
    rows = [{"problem": "P?", "answer": "5", "difficulty": 2.0}, {"problem": "N?", "answer": None, "difficulty": 0.0}]
    path.write_text(json.dumps(rows))
    found = load("math_train/train", tmp_path)
    assert (len(found.problems), found.dropped) == (1, {"empty_gold": 1})
    assert load("math_train/easy", tmp_path).problems[0].extra["level"] == "2"


@pytest.mark.parametrize(
    ("card", "file", "template"),
    [
        ("deepscaler_sub", "data/train/one_shot_rlvr/dsr_sub.parquet", "verl_boxed"),
        ("dapo_math", "data/dapo-math-17k.parquet", "dapo"),
    ],
)
def test_instruction_of_verl_parquet_is_stripped_and_restored_by_the_template(tmp_path, card, file, template):
    prompts = [user_message(template, question) for question in ("One?", "Two\nlines?", "One?")]
    write_parquet(tmp_path / file, [verl_row(prompt, "34") for prompt in prompts])
    found = load(card, tmp_path)
    assert [problem.prompt for problem in found.problems] == ["One?", "Two\nlines?"]
    assert [user_message(template, problem.prompt) for problem in found.problems] == prompts[:2]
    assert found.dropped == {"duplicate": 1}


def test_simplerl_parquet_is_filtered_by_the_level_of_the_row(tmp_path):
    rows = [
        verl_row("<|im_start|>...", "1", question=f"Q{level}?", level=level, subject="Algebra") for level in range(1, 6)
    ]
    write_parquet(tmp_path / "simplelr_qwen_level3to5" / "train.parquet", rows)
    found = load("simplerl_lvl3to5", tmp_path)
    assert [problem.prompt for problem in found.problems] == ["Q3?", "Q4?", "Q5?"]
    assert found.dropped == {"filtered_level": 2}
