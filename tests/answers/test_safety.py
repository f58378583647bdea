"""No text of a model is executed, and none keeps the main process busy for long."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from guarded_evaluators import guard

from fr3e_jax.answers import judge, limits

ROOT = Path(__file__).resolve().parents[2]
BUILTINS = {"eval", "exec", "compile", "__import__", "open"}
EVALUATORS = {"parse_expr", "sympify", "S", "nsimplify", "parse_latex", "lambdify"}
HOSTILE = [
    "__import__('os').system('touch {}')",
    "open('{}','w')",
    r"\text{{__import__('os').system('touch {}')}}",
    "open('{}','w').write('abcd')",
    'S(\'open("{}","w")\')',
    "[open('{}','w') for x in (1,)][0]",
    "f(open('{}','w'))",
    r"\operatorname{{eval}}(\text{{open('{}','w')}})",
    r"\frac{{open('{}','w')}}{{2}}",
    r"x_{{open('{}','w')}}",
    r"\int open('{}','w') dx",
    r"\begin{{cases}} open('{}','w') \end{{cases}}",
    r"{{5 \choose open('{}','w')}}",
]


def test_no_module_of_grading_names_an_evaluator_of_text():
    """Also not as an attribute."""
    found = []
    for path in (ROOT / "fr3e_jax" / "answers").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
            if name in EVALUATORS or (isinstance(node, ast.Name) and name in BUILTINS):
                found.append(f"{path.name}:{node.lineno}: {name}")
    assert not found


@pytest.fixture
def exploding_evaluators(monkeypatch):
    """The texts that reached an evaluator of sympy."""
    return guard(monkeypatch)


@pytest.mark.parametrize("template", HOSTILE)
def test_hostile_answers_reach_no_evaluator(template, tmp_path, exploding_evaluators):
    sentinel = tmp_path / "executed"
    answer = template.format(sentinel)
    for gold in ("4", r"\sqrt{5}", "x+1", r"\{1,2\}", r"\text{yes}"):
        assert judge(gold, answer).reward == 0.0
    assert not sentinel.exists()
    assert not exploding_evaluators


def test_mathematics_reaches_no_evaluator_either(exploding_evaluators):
    for gold, answer in [(r"\frac{1}{3}", r"\int_0^1 x^2 dx"), ("10", r"{5 \choose 2}"), ("x^2-1", "(x-1)*(x+1)")]:
        assert judge(gold, answer).reward == 1.0
    assert not exploding_evaluators


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^{9}}}",
        "9**9**9**9",
        "(10^{10})!",
        "((9!)!)!",
        "2^{1000000000}",
        r"(\frac13)^{10^8}",
        r"\binom{10^9}{10^8}",
        r"\prod_{k=1}^{10^6} k",
        r"\sum_{i=1}^{1999}\sum_{j=1}^{1999} ij",
        r"\sqrt[10^9]{2}",
        r"\sin(10^{100000})",
        r"x^{10^{9}}",
        r"(x+y+z+1)^{400}",
        r"e^{e^{e^{e^{e}}}}",
        "1/" * 900 + "3",
        "+".join(f"1/{n}" for n in range(3, 400)),
        "(x+1)" * 300,
        r"\sqrt{" * 39 + "2" + "}" * 39,
        r"\pm1" * 30,
        ",".join(str(n) for n in range(99)),
        r"\{" * 39 + "1" + r"\}" * 39,
        r"\begin{pmatrix}2&1\\1&1\end{pmatrix}^{10^9}",
        r"\left|" * 39 + "x" + r"\right|" * 39,
        "1,000" * 300,
        "1000^{" * 30 + "2" + "}" * 30,
        r"\gcd(" + ",".join(str(3**300 + n) for n in range(12)) + ")",
    ],
)
def test_bombs_are_refused_or_cheap_without_a_deadline(answer):
    """Without the pool. Any of these answers would run for minutes if it were neither refused nor cheap."""
    for gold in ("4", r"\sqrt{5}", "x^{400}", "1,2,3"):
        assert judge(gold, answer).reward == 0.0


def test_a_deep_answer_is_refused_where_decimals_may_be_close_too():
    for answer in ("x" + "!" * 1100, "-" * 1100 + "x"):
        assert judge("4", answer, 0.05, 0.01).outcome == "refused"


def test_the_document_quotes_every_limit():
    """docs/users/grading.md quotes every limit."""
    document = (ROOT / "docs" / "users" / "grading.md").read_text()
    for name, value in vars(limits).items():
        if name.isupper():
            assert f"`{name}` | {value:,}" in document, f"docs/users/grading.md should say: `{name}` | {value:,}"


def test_grading_a_simple_answer_loads_no_sympy():
    """So that the main process starts quickly and stays small."""
    program = (
        "import sys\nfrom fr3e_jax.rewards.named_verifiers import named_verifier\n"
        "from fr3e_jax.answers import quick_verdict\n"
        "assert quick_verdict('(1,2)', '(1,\\\\frac42)').reward\n"
        "sys.exit(any(name in sys.modules for name in ('sympy', 'mpmath', 'jax')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
