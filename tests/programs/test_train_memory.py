"""Memory of the compiled training programs: a few chunks of logits, and no copy of a donated array."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_programs import adamw, train_programs

from fr3e_jax.learning.configured_programs import token_chunk
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.network import build_network

VOCABULARY, CHUNK = 151_936, 32
ONE = jax.ShapeDtypeStruct((), jnp.float32)


def lowered_programs(tiny_network, *, dtype="float32", **sizes):
    """(accumulate, score, apply) for one micro-batch of 300 loss tokens, none run; and the weights' bytes."""
    network = tiny_network(num_layers=1)
    architecture = dataclasses.replace(network.architecture, **sizes)
    graphdef, abstract, axes = build_network(architecture, param_dtype=dtype, compute_dtype=dtype)
    network = network._replace(architecture=architecture, graphdef=graphdef, abstract=abstract, axes=axes)
    programs = train_programs(network, optimizer=adamw(), chunk=CHUNK)
    nothing = np.zeros(60, np.float32)
    branches = [TrainingBranch(20, np.ones(60, np.int32), nothing, nothing) for _ in range(5)]
    (micro,) = pack([TrainingTrunk(np.ones(20, np.int32), branches, 0)], tokens=1000, pad_id=0)
    state = programs.abstract_state["optimizer"]
    return (
        programs._accumulate.lower(abstract, abstract, micro.batch, ONE, ONE),
        programs._score.lower(abstract, micro.batch.rows, ONE),
        programs._apply.lower(abstract, state, abstract),
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract)),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_programs_hold_a_few_chunks_of_the_logits_of_a_large_vocabulary(tiny_network, dtype):
    """300 tokens in chunks of 32: all logits would be 182 MB in each of several arrays."""
    accumulate, score, _, size = lowered_programs(tiny_network, dtype=dtype, vocab_size=VOCABULARY)
    chunk, weight = CHUNK * VOCABULARY * 4, 32 * VOCABULARY * 4
    assert score.compile().memory_analysis().temp_size_in_bytes < 3 * chunk + weight
    # Beside logits and their gradient: the weight's gradient, in float32 while it is summed, and its last copy.
    assert accumulate.compile().memory_analysis().temp_size_in_bytes < 4 * chunk + 4 * weight


def test_gradients_parameters_and_state_are_updated_in_place(tiny_network):
    accumulate, _, apply, size = lowered_programs(tiny_network, vocab_size=500)
    assert accumulate.compile().memory_analysis().alias_size_in_bytes >= size
    assert apply.compile().memory_analysis().alias_size_in_bytes >= 3 * size, "parameters and both moments"


@pytest.mark.parametrize(
    ("most", "vocabulary", "platform", "tokens"),
    [
        (1024, 100, "cpu", 1024),
        (1024, 4_096, "cpu", 1024),
        (1024, 49_152, "cpu", 341),
        (1024, VOCABULARY, "cpu", 256),
        (64, VOCABULARY, "cpu", 64),
        (1024, VOCABULARY, "tpu", 1024),
        (3072, VOCABULARY, "gpu", 3072),
    ],
)
def test_a_large_vocabulary_makes_small_chunks_on_cpu_alone(most, vocabulary, platform, tokens):
    assert token_chunk(most, vocabulary, platform) == tokens
