"""The code of docs/users/python.md runs from its first block to its last."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "users" / "python.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    """With one training step in the place of twenty."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    assert len(blocks) >= 6 and code.count('"training.max_steps": 20') == 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FR3E_STRICT_METRICS", "")
    names: dict = {}
    exec(code.replace('"training.max_steps": 20', '"training.max_steps": 1'), names)
    result = names["result"]
    assert result.state == "finished" and len(repr(result).splitlines()) == 5
    assert {"rewards/reward", "rewards/short"} <= result.history[0].keys()
    assert names["answers"] and names["states"] and len(names["scores"]) == len(names["answers"])
