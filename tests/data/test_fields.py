"""Values of rows become texts by rules for paths, numbers, markers, boxes and lists; unusable values give a reason."""

from __future__ import annotations

import pytest

from fr3e_jax.data.fields import FieldRule, Unusable, lookup, parse_path

ROW = {
    "prompt": [{"content": "What? Think.", "role": "user"}],
    "reward_model": {"ground_truth": "7", "none": None},
    "answer": "48/2=<<48/2=24>>24 and #### not yet\n#### 1,072",
    "solution": "First \\boxed{1}, then $\\boxed{\\frac{1}{2}}$ or so.",
    "score": 27.0,
    "ratio": 0.25,
    "year": 1983,
    "blank": " \n",
    "list": ["9.6\n", "", "9.6", "9.60"],
    "written_list": "['8.7 \\\\times 10^{8}\\n']",
    "open_list": "['2', '5'",
    "interval": "[2, 5]",
    "code": "    return x\n",
    "flag": True,
}


def read(path, **rule):
    return FieldRule(path, **rule).read(ROW)


@pytest.mark.parametrize(
    ("path", "steps"),
    [("a", ("a",)), ("a.b", ("a", "b")), ("prompt[0].content", ("prompt", 0, "content")), ("a[-1][2]", ("a", -1, 2))],
)
def test_path_is_parsed_into_names_and_indices(path, steps):
    assert parse_path(path) == steps


@pytest.mark.parametrize("path", ["", ".", ".a", "a.", "a..b", "a[x]", "a[0", "[0]", "a]"])
def test_text_that_is_not_a_path_is_refused(path):
    with pytest.raises(ValueError, match="is not a path to a field; expected names and indices such as"):
        parse_path(path)


def test_lookup_of_an_absent_field_is_none():
    assert lookup(ROW, "prompt[0].content") == "What? Think."
    for path in ("prompt[1].content", "prompt.content", "reward_model[0]", "reward_model.none.more", "nothing"):
        assert lookup(ROW, path) is None


@pytest.mark.parametrize(
    ("path", "rule", "texts"),
    [
        ("reward_model.ground_truth", {}, ("7",)),
        ("answer", {"after_last": "#### "}, ("1,072",)),
        ("answer", {"remove": "<<.*?>>"}, ("48/2=24 and #### not yet\n#### 1,072",)),
        ("solution", {"last_boxed": True}, ("\\frac{1}{2}",)),
        ("prompt[0].content", {"strip_suffix": " Think.", "strip_prefix": "Wh"}, ("at?",)),
        ("prompt[0].content", {"strip_suffix": " Another instruction."}, ("What? Think.",)),
        ("score", {}, ("27",)),
        ("ratio", {}, ("0.25",)),
        ("year", {}, ("1983",)),
        ("list", {"unwrap_list": True}, ("9.6", "9.60")),
        ("written_list", {"unwrap_list": True}, ("8.7 \\times 10^{8}",)),
        ("interval", {"unwrap_list": True}, ("[2, 5]",)),
        ("year", {"unwrap_list": True}, ("1983",)),
        ("code", {"strip": False}, ("    return x\n",)),
        ("code", {}, ("return x",)),
    ],
)
def test_rule_reads_the_texts_of_a_value(path, rule, texts):
    assert read(path, **rule) == texts


@pytest.mark.parametrize(
    ("path", "rule", "reason"),
    [
        ("nothing", {}, "empty"),
        ("reward_model.none", {}, "empty"),
        ("blank", {}, "empty"),
        ("blank", {"last_boxed": True}, "empty"),
        ("answer", {"after_last": "@@"}, "unreadable"),
        ("answer", {"last_boxed": True}, "unreadable"),
        ("open_list", {"unwrap_list": True}, "unreadable"),
        ("list", {}, "unreadable"),
        ("flag", {}, "unreadable"),
        ("year", {"remove": "[0-9]"}, "empty"),
    ],
)
def test_unusable_value_gives_its_reason(path, rule, reason):
    with pytest.raises(Unusable) as caught:
        read(path, **rule)
    assert caught.value.reason == reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "['" + "[" * 5000, "['a'," * 900])
def test_hostile_value_is_unusable_and_not_an_error(value):
    with pytest.raises(Unusable):
        FieldRule("x", unwrap_list=True).read({"x": value})


def test_long_solution_is_read_in_linear_time():
    text = "\\boxed{" * 200_000
    with pytest.raises(Unusable):
        FieldRule("x", last_boxed=True).read({"x": text})
