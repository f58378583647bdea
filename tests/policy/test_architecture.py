"""Published sizes, checked by shape without allocating a weight, and architectures that are refused."""

from __future__ import annotations

import dataclasses
import math

import jax
import pytest

from fr3e_jax.policy.architecture import PUBLISHED, Architecture, UnsupportedModel
from fr3e_jax.policy.families import FAMILIES
from fr3e_jax.policy.network import build_network, initial_params

# Numbers of parameters of the released checkpoints, a repeated head not counted: exact where an exact one is published
# (Keras' presets give Qwen3's smallest), else in billions as the model cards round them.
PUBLISHED_PARAMETERS = {
    "qwen2.5-0.5b": "0.494",
    "qwen2.5-1.5b": "1.544",
    "qwen2.5-3b": "3.086",
    "qwen2.5-7b": "7.616",
    "qwen2.5-14b": "14.770",
    "qwen2.5-32b": "32.764",
    "qwen2.5-72b": "72.706",
    "qwen2.5-math-1.5b": "1.544",
    "qwen2.5-math-7b": "7.616",
    "qwen2.5-math-72b": "72.706",
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": "1.721",
    "qwen3-4b": "4.022",
    "qwen3-8b": "8.191",
    "qwen3-14b": "14.768",
    "qwen3-32b": "32.762",
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": "235.094",
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": "3.880",
    "gemma-3-12b": "11.766",
    "gemma-3-27b": "27.009",
}


EXPERTS = dict(model_type="qwen3_moe", num_experts=3, experts_per_token=2, expert_size=5)


def elements(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def test_every_published_size_has_an_expected_count():
    assert PUBLISHED.keys() == PUBLISHED_PARAMETERS.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size_has_its_known_number_of_parameters(name):
    """Two layers are built without allocating a weight; all layers are alike."""
    architecture, known = PUBLISHED[name], PUBLISHED_PARAMETERS[name]
    count = [elements(build_network(dataclasses.replace(architecture, num_layers=n))[1]) for n in (1, 2)]
    whole = count[0] + (count[1] - count[0]) * (architecture.num_layers - 1)
    assert whole == architecture.num_parameters
    assert known == (whole if isinstance(known, int) else f"{whole / 1e9:.3f}")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "family",
    [{"model_type": name} for name in FAMILIES if name != "qwen3_moe"]
    + [{"model_type": "llama", "attention_bias": True}, EXPERTS | {"dense_layers": (1,)}],
)
def test_number_of_initial_parameters_equals_num_parameters(key, tied, family):
    architecture = Architecture(11, 12, 2, 4, 2, 6, 20, tie_word_embeddings=tied, **family)  # heads wider than the net
    assert elements(initial_params(architecture, key)) == architecture.num_parameters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "num_heads=5 is not a multiple of num_kv_heads=2"),
        ({"head_dim": 3}, "head_dim=3 is odd or below 2"),
    ],
)
def test_unsupported_architecture_is_refused_with_the_reason(changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        dataclasses.replace(Architecture(11, 12, 1, 4, 2, 6, 20), **changes)


def test_windows_are_kept_as_their_shortest_period():
    of = lambda windows, layers: Architecture(11, 12, layers, 4, 2, 6, 20, model_type="gemma2", windows=windows)
    assert of((4, 0, 4, 0), 4) == of((4, 0), 4) and of((4, 0, 4, 0), 4).windows == (4, 0)
    assert of((4, 4, 0), 2) == of((4,), 2) and of((0, 0), 2).sliding_window == 0
    assert [of((4, 4, 0), 5).window_of(layer) for layer in range(5)] == [4, 4, 0, 4, 4]


def test_a_token_passes_a_tenth_of_the_released_mixture():
    assert f"{PUBLISHED['qwen3-30b-a3b'].active_parameters / 1e9:.2f}" == "3.35"
    assert PUBLISHED["qwen3-8b"].active_parameters == PUBLISHED["qwen3-8b"].num_parameters
