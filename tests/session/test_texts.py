"""Questions become prompts in their template."""

from __future__ import annotations

import pytest

from fr3e_jax.data.character_tokenizer import character_tokenizer
from fr3e_jax.data.templates import TEMPLATES, load_template
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.session.texts import Texts

CHAT = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}{% if add_generation_prompt %}[{% endif %}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_question_stands_in_its_template_as_it_is(name):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    template = load_template(name)
    chatting = Texts(TextCodec(tokenizer), template)
    message = f"{template.before}1+'2'={template.after}"
    assert chatting.prompt_text("1+'2'=") == (f"[user: {message}][" if template.chat else message)
