"""``fr3e train --profile[=STEPS]`` sets runtime.profile_steps."""

from __future__ import annotations

import pytest

from fr3e_jax.cli.entry import main

RECIPE = "configs/demo_fr3e.yaml"


def printed(capsys, *arguments: str) -> str:
    assert main(["train", *arguments, "--print-config"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, steps",
    [([], 0), (["--profile"], 4), (["--profile=7"], 7), (["--profile", "7"], 7), (["--profile", "seed=3"], 4)],
)
def test_profile_option_sets_the_profile_steps(arguments, steps, capsys):
    text = printed(capsys, RECIPE, *arguments)
    assert f"profile_steps: {steps}\n" in text
    assert ("\nseed: 3\n" in text) == ("seed=3" in arguments)


@pytest.mark.parametrize("steps", ["0", "-2", "some"])
def test_profile_option_without_a_number_of_steps_is_refused(steps, capsys):
    assert main(["train", RECIPE, f"--profile={steps}"]) == 2
    assert f"--profile={steps}: expected a number of steps" in capsys.readouterr().err


def test_run_that_is_too_short_for_its_profile_is_refused(capsys):
    assert main(["train", RECIPE, "--profile=6", "training.max_steps=8", "--print-config"]) == 2
    assert "nearest: training.max_steps=9" in capsys.readouterr().err
    assert main(["train", RECIPE, "--profile=6", "training.max_steps=9", "--print-config"]) == 0
