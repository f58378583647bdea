"""Data inside of a page."""

import base64
import gzip
import json
import re

import numpy as np
import pytest

from fr3e_jax.studies.reports.embedding import embed, significant

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m<!--"


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_data_come_back_and_hostile_text_is_neither_markup_nor_the_end_of_its_element():
    text = embed({"text": HOSTILE, "numbers": np.array([0.5, np.nan]), "count": np.int64(3), 7: "key"})
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    assert unpacked(text) == {"text": HOSTILE, "numbers": [0.5, None], "count": 3, "7": "key"}
    assert embed({"a": 1}) == embed({"a": 1})


def test_a_lone_surrogate_of_a_damaged_text_is_replaced():
    assert unpacked(embed(["a\ud800b", 1])) == ["a\ufffd\ufffd\ufffdb", 1]


def test_content_without_a_json_form_is_named():
    with pytest.raises(TypeError, match="set"):
        embed({"a": {1}})


def test_floats_have_the_digits_of_float32_and_other_values_stay():
    values = [12345678.9, 0.123456789, 123456789, None, float("nan")]
    assert [significant(value) for value in values] == [12345680.0, 0.1234568, 123456789, None, None]
