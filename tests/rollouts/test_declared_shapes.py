"""The sizes of caches that recipes declare: few, large enough for every sequence, and equal for all calls."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.programs.shapes import LaneLayout, Shapes
from fr3e_jax.rollouts.declared_shapes import declared_shapes


def shapes_of(recipe: str, *overrides: str) -> Shapes:
    return declared_shapes(load_config(recipe, list(overrides)))


@pytest.mark.parametrize(
    ("prompt", "response", "most", "chunk", "prompts", "responses", "rings"),
    [
        (24, 77, 0, 8, 24, (112,), (80,)),
        (24, 77, 2, 8, 24, (112,), (80,)),
        (12, 24, 0, 8, 16, (48,), (32,)),
        (64, 256, 0, 16, 64, (192, 384), (64, 128, 256)),
        (1024, 16384, 2, 64, 1024, (4352, 17408), (4096, 16384)),
        (1024, 16384, 1, 64, 1024, (17408,), (16384,)),
        (256, 200, 0, 64, 256, (512,), (64, 128, 256)),
    ],
)
def test_sizes_follow_from_the_caps(prompt, response, most, chunk, prompts, responses, rings):
    shapes = shapes_of(
        "demo",
        f"data.max_prompt_tokens={prompt}",
        f"rollout.max_response_tokens={response}",
        f"rollout.cache_sizes={most}",
        f"rollout.decode_chunk={chunk}",
        "rollout.expected_tokens=0",
    )
    assert (shapes.prompt, shapes.responses, shapes.rings) == (prompts, responses, rings)
    assert shapes.ring(1, response) == rings[0] and shapes.ring(response, response) == rings[-1]
    assert shapes.trunk(prompt) == prompts and shapes.trunk(prompts + 1) == responses[0]
    assert shapes.promoted(2) == responses[0], "a promoted trunk never has the size of prompts alone"
    assert shapes.promoted(prompt + response) == responses[-1]


def test_a_longer_sequence_than_the_recipe_has_gets_a_usual_size():
    shapes = shapes_of("demo")
    assert shapes.trunk(500) == 512 and shapes.ring(100, 100) == 128


def test_calls_that_leave_lanes_idle_have_layouts_of_their_own():
    assert shapes_of("demo_fr3e").smaller == (LaneLayout(8, 16),)
    shapes = shapes_of("demo")
    assert shapes.smaller == (LaneLayout(16, 6),), "256 base rollouts nearly fill the 272 lanes; returns do not"
    assert shapes.layout(16, 6) == shapes.layout(3, 4) == (16, 6)
    assert shapes.layout(17, 6) == (16, 6), "trunks that wait for a slot fill no further lanes"
    assert shapes.layout(16, 16) == shapes.layout(17, 7) == (16, 17)
    assert shapes_of("demo_fr3e").layout(17, 1) == (16, 17), "a layout of fewer slots would let trunks wait"
