r"""From tokens to a tree: a recursive-descent grammar of answers, in LaTeX and in plain text.

Nothing here evaluates anything, and no text of a model ever reaches Python's or sympy's own parsers. The grammar, from
loose to tight::

    answer     item ((, | ; | and | or) item)*
    item       set ((= | < | \le | \in | \approx | ...) set)*
    set        ratio ((\cup | \cap | \setminus) ratio)*
    ratio      additive (: additive)*
    additive   [+ | - | \pm] term ((+ | - | \pm | \mp) term)*
    term       unary ((* | \cdot | \times | / | \div | \bmod | nothing) unary)*
    postfix    atom (^ exponent | ! | % | ' | _ subscript | text)*

``1/2x`` is (1/2)x, ``\sin 2x`` is sin(2x), ``\sin a \cos b`` a product, ``2\frac12`` a mixed number, as latex2sympy
and Math-Verify read them. A bar closes an absolute value wherever it can. If the text cannot be read so, an outermost
absolute value may hold all bars of its product: ``||x||y||`` is the absolute value of ``|x||y|``.

The rules are functions of one ``Cursor``. Each file imports only files below it: ``expressions`` (down to factors),
``atoms``, ``commands``, ``big_operators``, ``brackets``. For the way up the cursor carries ``Rules``, named here.
"""

from __future__ import annotations

from fr3e_jax.rewards.math.atoms import atom
from fr3e_jax.rewards.math.brackets import stacked
from fr3e_jax.rewards.math.cursor import END, Cursor, Rules
from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.expressions import additive, answer, item, postfix, term
from fr3e_jax.rewards.math.limits import Unreadable
from fr3e_jax.rewards.math.tokens import Token
from fr3e_jax.rewards.math.words import inward_brackets, plain_words, split_commas

_RULES = Rules(answer, item, additive, term, postfix, atom)
_NESTED_BARS = 6  # the fewest bars in which an absolute value holds two others


def read_tokens(tokens: list[Token], commas_group: bool = True) -> Node:
    """The tree of an answer.

    Args:
      commas_group: whether ``1,000`` outside of brackets is one number rather than two.

    Raises:
      Refused: beyond a limit.
      Unreadable: not in the grammar.
    """
    prepared = plain_words(split_commas(inward_brackets(tokens), commas_group))
    try:
        return _read(prepared, enclosing_bars=False)
    except Unreadable:
        if sum(token.value == "|" for token in prepared) < _NESTED_BARS:
            raise
        return _read(prepared, enclosing_bars=True)


def _read(tokens: list[Token], enclosing_bars: bool) -> Node:
    cursor = Cursor(list(tokens), _RULES, enclosing_bars)
    tree = stacked(cursor)
    if cursor.next is not END:
        raise Unreadable(f"{cursor.next.value!r} was not expected there")
    return tree
