"""A Hugging Face directory in, one FR3E step on GSM8K's questions, a Hugging Face directory out."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from fr3e_jax.cli import main
from fr3e_jax.configuration import load_config
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.huggingface import stored_shapes
from fr3e_jax.policy.network import build_network
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.session.session import open_session
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.run_data import collect

ROOT = Path(__file__).parents[2]
VERIFIER = f"{ROOT / 'tests/fixtures/answer_form.py'}:even_bytes"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES, THINGS = ("Ann", "Bob", "Zoë", "Dmitri"), ("apples", "pens", "stickers")


def own_rows(count: int, start: int) -> list[dict]:
    """Questions in the form of GSM8K's files."""
    rows = []
    for n in range(start, start + count):
        name, thing, a, b = NAMES[n % 4], THINGS[n % 3], n + 2, 3 * n + 1
        rows.append(
            {
                "question": f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?",
                "answer": f"{name} has {a} + {b} = <<{a}+{b}={a + b}>>{a + b} {thing}.\n#### {a + b}",
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    """A directory with gsm8k/train.jsonl.gz and test.jsonl.gz."""
    root = tmp_path_factory.mktemp("data")
    write_rows(root / "gsm8k" / "train.jsonl.gz", own_rows(40, 0))
    write_rows(root / "gsm8k" / "test.jsonl.gz", own_rows(10, 40))
    return root


@pytest.fixture(scope="module")
def checkpoint(data_root, tmp_path_factory) -> Path:
    with gzip.open(data_root / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["question"] for line in file][:500]
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), texts)


def make_checkpoint(directory: Path, texts: list[str]) -> Path:
    """A random Qwen2.5: two shards with an index, a byte-level BPE tokenizer trained on ``texts``, two stops."""
    directory.mkdir(exist_ok=True)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=special[2], pad_token=special[0])
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(directory)
    sizes = dict(vocab_size=512, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)
    architecture = Architecture(**sizes, intermediate_size=64, tie_word_embeddings=False)
    write_weights(directory, architecture)
    (directory / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Qwen2ForCausalLM"],
                "model_type": "qwen2",
                "vocab_size": 512,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 64,
                "tie_word_embeddings": False,
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 4096,
                "hidden_act": "silu",
                "use_sliding_window": False,
                "torch_dtype": "float32",
                "bos_token_id": 0,
                "eos_token_id": 2,
            }
        )
    )
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True, "top_p": 0.8})
    )
    return directory


def write_weights(directory: Path, architecture: Architecture) -> None:
    shapes = stored_shapes(architecture, build_network(architecture)[1])
    rng = np.random.default_rng(0)
    tensors = {
        name: (1 + 0.1 * rng.standard_normal(s) if len(s) == 1 and "norm" in name else 0.3 * rng.standard_normal(s))
        for name, s in shapes.items()
    }
    tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in halves.items():
        save_file({name: tensors[name] for name in members}, directory / file, metadata={"format": "pt"})
    index = {name: file for file, members in halves.items() for name in members}
    size = sum(tensor.nbytes for tensor in tensors.values())
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": index})
    )


def settings(checkpoint: Path, data_root: Path, run: Path) -> list[str]:
    return [
        f"model.path={checkpoint}",
        f"data.root={data_root}",
        f"data.verifier={VERIFIER}",
        f"runtime.run_dir={run}",
        "model.compute_dtype=float32",
        "rewards.workers=1",
        "rollout.prompts_per_round=3",
        "rollout.rollouts_per_prompt=4",
        "rollout.max_response_tokens=12",
        "rollout.trunk_slots=4",
        "rollout.lanes_per_trunk=4",
        "rollout.decode_chunk=4",
        "explore.num_anchors=2",
        "explore.rollouts_per_state=3",
        "training.batch_rollouts=12",
        "training.mini_batch_rollouts=12",
        "training.micro_batch_tokens=1024",
        "training.max_steps=1",
        "optimizer.learning_rate=1e-3",
        "evaluation.prompts=2",
        "evaluation.samples=2",
        "evaluation.pass_at=[2]",
        "runtime.trackers=[]",
        "runtime.console=none",
        "runtime.compilation_cache=",
        "runtime.compile_ahead=false",
    ]


@pytest.fixture(scope="module")
def run(checkpoint, data_root, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    assert main(["train", str(ROOT / "configs" / "fr3e_gsm8k.yaml"), *settings(checkpoint, data_root, path)]) == 0
    return path


def config_of(directory: Path) -> dict:
    return AutoConfig.from_pretrained(directory).to_dict() | {"_name_or_path": ""}


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("exported") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fr3e_jax.verbs.model_directory.MAX_SHARD_BYTES", 100_000)
        assert main(["export", str(run), str(directory)]) == 0
    return directory


def rollouts_of(run: Path) -> list:
    return read_rollouts(run / "rollouts" / "step_000001.jsonl.gz")


def weights_of(directory: Path) -> dict[str, np.ndarray]:
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    return {name: load_file(directory / file)[name] for name, file in index.items()}


def test_questions_become_prompts_in_the_template_and_are_graded_by_the_users_function(run, checkpoint, data_root):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    with gzip.open(data_root / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        questions = [json.loads(line)["question"] for line in file]
    records = rollouts_of(run)
    assert {record.kind for record in records} == {"base", "state"}
    by_id = {record.id: record for record in records}
    for record in records:
        assert record.problem_id.startswith("gsm8k/train/")
        question = questions[int(record.problem_id.rsplit("/", 1)[1])]
        prompt = tokenizer.decode(record.prompt_ids)
        system = "Please reason step by step, and put your final answer within \\boxed{}."
        assert prompt == (
            f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )
        before = by_id[record.parent].token_ids[: record.fork] if record.parent else []
        ids = [*before, *record.token_ids]
        assert record.finished == (ids[-1] in (0, 2)), "both ids of generation_config.json end a response"
        text = tokenizer.decode(ids[:-1] if record.finished else ids)
        assert record.reward == float(sum(text.encode()) % 2 == 0)
        assert record.outcome == ("right" if record.reward else "wrong")


def test_metrics_tell_how_the_rewards_came_about(run):
    (record,) = read_metrics(run / "metrics.jsonl", kind="train")
    outcomes = {name: value for name, value in record.items() if name.startswith("verifier/")}
    assert outcomes["verifier/right"] > 0 and outcomes["verifier/wrong"] > 0
    assert outcomes["verifier/right"] + outcomes["verifier/wrong"] == len(rollouts_of(run))
    assert outcomes["verifier/timeout"] == outcomes["verifier/worker_died"] == outcomes["verifier/error"] == 0


def test_the_run_ends_with_a_report_whose_pieces_of_tokens_make_the_texts(run, checkpoint):
    assert "Content-Security-Policy" in (run / "report.html").read_text(encoding="utf-8")
    shown = collect(StoredRun.open(run)).main
    assert dict(shown["headline"]["facts"])["state"] == "finished" and shown["sampling"]["steps_read"] == [1]
    tokenizer, pieces = AutoTokenizer.from_pretrained(checkpoint), shown["vocabulary"]
    for record in rollouts_of(run):
        # The padded embedding has ids that the tokenizer lacks; the page shows their numbers.
        ids = [token for token in record.token_ids if token < len(tokenizer)]
        parts = [pieces[str(token)] for token in ids]
        text = b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in parts)
        shown_text, expected = text.decode(errors="replace"), tokenizer.decode(ids)
        assert re.sub("\ufffd+", "\ufffd", shown_text) == re.sub("\ufffd+", "\ufffd", expected)


def test_the_exported_directory_has_the_trained_weights_in_the_layout_it_came_in(exported, checkpoint):
    before, after = weights_of(checkpoint), weights_of(exported)
    assert {name: a.shape for name, a in after.items()} == {name: a.shape for name, a in before.items()}
    moved = [name for name in before if not np.array_equal(before[name], after[name])]
    assert len(moved) == len(before), f"not trained: {set(before) - set(moved)}"
    assert max(np.abs(after[name] - before[name]).max() for name in before) < 0.01, "one step of 1e-3"
    assert json.loads((exported / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    tokenizer, original = AutoTokenizer.from_pretrained(exported), AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.get_vocab() == original.get_vocab() and tokenizer.chat_template == CHAT
    assert config_of(exported) == config_of(checkpoint)


def test_transformers_loads_the_export_without_a_warning_and_gives_equal_logits(
    transformers_model, loaded_silently, exported, run
):
    import torch
    from transformers import AutoModelForCausalLM

    from fr3e_jax.policy.network import bind
    from fr3e_jax.policy.rows import run_trunks
    from fr3e_jax.session.run_weights import load_run_params

    model = loaded_silently(AutoModelForCausalLM, exported)
    session = open_session(load_config(run / "config.yaml", []))
    params, step = load_run_params(session, run)
    assert step == 1
    ids = np.random.default_rng(1).integers(0, 500, (1, 40))
    hidden = run_trunks(session.model.graphdef, params, ids.astype(np.int32)).hidden
    ours = np.asarray(bind(session.model.graphdef, params).logits(hidden))
    with torch.no_grad():
        theirs = model(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_exported_directory_trains_on(exported, data_root, tmp_path):
    recipe = str(ROOT / "configs" / "fr3e_gsm8k.yaml")
    assert main(["train", recipe, *settings(exported, data_root, tmp_path / "run")]) == 0
    (record,) = read_metrics(tmp_path / "run" / "metrics.jsonl", kind="train")
    assert record["step"] == 1 and record["gradient_norm/mean"] > 0


def test_without_a_verifier_of_the_user_the_benchmarks_own_grades(checkpoint, data_root, tmp_path):
    own = [s for s in settings(checkpoint, data_root, tmp_path / "run") if not s.startswith("data.verifier")]
    session = open_session(load_config(ROOT / "configs" / "fr3e_gsm8k.yaml", own))
    problem = session.task.problems("train")[3]
    gold = own_rows(4, 0)[3]["answer"].rsplit("#### ")[-1]
    responses = [rf"So it is \boxed{{{gold}}}.", rf"So it is \boxed{{{gold}1}}.", "So it is."]
    with session.grader.grader as grader:
        verdicts = [grader.submit(problem, response, True).result() for response in responses]
    assert [(v.reward, v.outcome) for v in verdicts] == [(1.0, "right"), (0.0, "wrong"), (0.0, "no_answer")]
