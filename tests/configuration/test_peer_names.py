"""The names that other trainers have for our settings."""

from fr3e_jax.configuration.peer_names import ELSEWHERE, NAMES, instead, our_names
from fr3e_jax.configuration.settings import settings


def test_every_answer_is_a_setting_and_no_name_hides_one_of_ours():
    for theirs, ours in NAMES.items():
        assert set(ours) <= set(settings()), theirs
        assert theirs == theirs.lower() and theirs not in settings()


def test_sections_capitals_and_dashes_do_not_matter():
    assert our_names("trainer.LR") == our_names("--lr".strip("-")) == ("optimizer.learning_rate",)
    assert our_names("max-completion-length") == ("rollout.max_response_tokens",)
    assert our_names("nothing") == ()


def test_what_is_no_setting_here_is_neither_a_setting_nor_a_name_with_an_answer():
    assert not set(ELSEWHERE) & (set(NAMES) | set(settings()))
    assert instead("trainer.n_gpus_per_node") == ELSEWHERE["devices"] and instead("lr") == ""
