"""A strict session: chosen device count, one compilation cache, no silent rank promotion, shapes checked as types.

Environment: FR3E_TEST_DEVICES is the number of virtual CPU devices (default 1); FR3E_TEST_OPTIMISED keeps the
optimisations that users have; with FR3E_REQUIRE_TORCH tests that need torch fail where it is absent and are not skipped
(make test-parity).
"""

from __future__ import annotations

import itertools
import os
import signal
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parent
DEVICES = int(os.environ.get("FR3E_TEST_DEVICES", "1"))

# Compilation takes most of the time of a first test run; with these flags it takes a third of the CPU seconds.
CHEAP_COMPILATION = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# On several devices, code without fusion emitters rounds further from one device's than users' code does. jax 0.11 has
# no other emitters, and an unknown flag ends the process.
if DEVICES == 1 and version("jax").startswith("0.10."):
    CHEAP_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
if not os.environ.get("FR3E_TEST_OPTIMISED") and CHEAP_COMPILATION not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {CHEAP_COMPILATION}".strip()

# Through the environment, so that the processes that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(DEVICES))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "fr3e_jax" / "xla-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the Hugging Face hub
os.environ.setdefault("FR3E_STRICT_METRICS", "1")  # a run that writes a metric without a row in the table fails

# A shell without job control starts its background jobs with SIGINT ignored, nohup with SIGHUP; and so would be what
# tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import hypothesis  # noqa: E402
import jax  # noqa: E402  (reads the environment above)
import jaxtyping  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# Hypothesis fails examples of more than 200 ms and slow data: a busy machine has both.
slow = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("no clock", deadline=None, suppress_health_check=slow)
hypothesis.settings.load_profile("no clock")

jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Only the pure functions: the hook breaks pytree dataclasses under vmap, scan, grad and eval_shape.
jaxtyping.install_import_hook("fr3e_jax.objectives", "beartype.beartype")


pytest_plugins = ["tiny_runs", "object_store"]  # tests/fixtures


COMPILING = ("campaign", "loop", "programs", "learning", "rollouts", "verbs", "policy", "runs", "api", "launch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the rooms that compile or train first: short files are left to even out the two workers at the end."""
    rooms = {item: item.path.relative_to(TESTS).parts[0] for item in items}
    items.sort(key=lambda item: COMPILING.index(rooms[item]) if rooms[item] in COMPILING else len(COMPILING))


MOST_MAPPINGS = 40_000
"""Memory mappings of a test process. A program on CPU takes about 15, and Linux aborts a process at 65,530."""


LOOKED_EVERY = 16  # tests; a look takes some ten milliseconds, and no test has 500 programs
_tests = itertools.count()


@pytest.fixture(autouse=True)
def few_programs():
    """Drop the compiled programs of earlier tests before their memory mappings run out."""
    yield
    mappings = Path("/proc/self/maps")
    if next(_tests) % LOOKED_EVERY == 0 and mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


class TinyNetwork(NamedTuple):
    """A two-layer network whose biases and norms have left their initial 0 and 1, so that none can be forgotten."""

    architecture: Any
    graphdef: Any
    abstract: Any
    axes: Any
    params: Any

    def full_pass(self, sequences: list) -> list[tuple[np.ndarray, np.ndarray]]:
        """(logits ``[length, V]``, hidden states) of each sequence passed whole: no trunk, no branch, no cache."""
        ids = np.zeros((16, 64), np.int32)
        for row, sequence in zip(ids[: len(sequences)], sequences, strict=True):
            row[: len(sequence)] = sequence
        logits, hidden = map(np.asarray, _full_pass(self.graphdef, self.params, ids))
        return [(logits[i, : len(sequence)], hidden[i, : len(sequence)]) for i, sequence in enumerate(sequences)]

    def full_logits(self, sequences: list) -> list[np.ndarray]:
        return [logits for logits, _ in self.full_pass(sequences)]


@partial(jax.jit, static_argnums=0)
def _full_pass(graphdef, params, ids):
    from fr3e_jax.policy.network import bind
    from fr3e_jax.policy.rows import run_trunks

    hidden = run_trunks(graphdef, params, ids).hidden
    return bind(graphdef, params).logits(hidden), hidden


def make_tiny_network(*, compute_dtype: str = "float32", **sizes) -> TinyNetwork:
    from fr3e_jax.policy.architecture import Architecture
    from fr3e_jax.policy.network import build_network

    defaults = dict(vocab_size=20, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)
    architecture = Architecture(**defaults | dict(intermediate_size=48, rope_theta=1000.0) | sizes)
    graphdef, abstract, axes = build_network(architecture, compute_dtype=compute_dtype)
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        x = rng.standard_normal(leaf.shape).astype(leaf.dtype)
        if leaf.ndim == 1:
            return 0.2 * x + np.float32(path[-1].key == "scale")
        return x * np.float32(0.3 if len(path) == 1 else leaf.shape[-2] ** -0.5)  # embedding and head; kernels

    params = jax.tree_util.tree_map_with_path(draw, abstract)  # on the host: no test can donate them away
    return TinyNetwork(architecture, graphdef, abstract, axes, params)


@pytest.fixture(scope="session")
def tiny() -> TinyNetwork:
    return make_tiny_network()


@pytest.fixture(scope="session")
def tiny_untied() -> TinyNetwork:
    return make_tiny_network(tie_word_embeddings=False)


WINDOWED = {
    "gemma2": dict(
        model_type="gemma2", num_layers=3, windows=(5, 0), query_scalar=12.0, attention_softcap=2.0, final_softcap=3.0
    ),
    "gemma3": dict(model_type="gemma3_text", num_layers=3, windows=(5, 5, 0), local_rope_theta=50.0),
}


@pytest.fixture(scope="session")
def tiny_windowed() -> TinyNetwork:
    """Three layers, of which the first and the last attend to windows of 5 positions; scores and logits are bounded."""
    return make_tiny_network(**WINDOWED["gemma2"])


EXPERTS = dict(model_type="qwen3_moe", num_experts=5, experts_per_token=2, expert_size=12, norm_topk_prob=True)


@pytest.fixture(scope="session")
def tiny_experts() -> TinyNetwork:
    """Two layers of five experts, of which a token passes two."""
    return make_tiny_network(**EXPERTS)


@pytest.fixture(scope="session", params=WINDOWED)
def tiny_of_windows(request, tiny_windowed) -> TinyNetwork:
    """Networks whose layers differ in their windows: one with softcaps, one with two rotary bases."""
    return tiny_windowed if request.param == "gemma2" else make_tiny_network(**WINDOWED[request.param])


@pytest.fixture(scope="session")
def tiny_network():
    """`make_tiny_network`, for other sizes."""
    return make_tiny_network


@pytest.fixture(scope="session")
def transformers_model():
    """Builds a random network of a family of `transformers` with small sizes, all of whose parameters matter."""
    if not os.environ.get("FR3E_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="torch is in no requirements file; `make test-parity` installs it")
    import torch
    import transformers

    def make(family: str, **settings: Any):
        config = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
        config |= dict(num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, max_position_embeddings=512)
        torch.manual_seed(0)
        # With separate configurations of text and images, that of the text.
        kind = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
        config = kind(**config | settings)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:  # biases and norms leave their initial 0 and 1
                    parameter.add_(0.2 * torch.randn_like(parameter))
                else:
                    parameter.mul_(15 if "embed" in name or "head" in name else 8)
        return model

    return make


@pytest.fixture
def loaded_silently():
    """Calls ``kind.from_pretrained(directory)``; a logged warning or a key too many or too few is a failure."""
    import logging

    def load(kind, directory):
        records = []
        recorder = logging.Handler(logging.WARNING)
        recorder.emit = lambda record: records.append(record.getMessage())
        logger = logging.getLogger("transformers")
        logger.addHandler(recorder)
        try:
            model, information = kind.from_pretrained(directory, output_loading_info=True)
        finally:
            logger.removeHandler(recorder)
        assert not records and not any(information.values()), (records, information)
        return model.eval()

    return load
