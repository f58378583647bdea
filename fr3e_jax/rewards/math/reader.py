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
and Math-Verify read them.
"""

from __future__ import annotations

from fr3e_jax.rewards.math.atoms import Atoms
from fr3e_jax.rewards.math.commands import Commands
from fr3e_jax.rewards.math.cursor import END
from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.limits import LIST_ITEMS, Refused, Unreadable
from fr3e_jax.rewards.math.nodes import decorated, integer_value, mixed, product, with_sign
from fr3e_jax.rewards.math.shapes import is_name
from fr3e_jax.rewards.math.tokens import Token, tokenise
from fr3e_jax.rewards.math.vocabulary import ACCENTS, CONSTANTS, FUNCTIONS, GREEK_SYMBOLS, RELATIONS
from fr3e_jax.rewards.math.words import inward_brackets, plain_words, split_commas

SEPARATORS = {",", ";", "and", "or"}
_NESTED_BARS = 6  # the fewest bars in which an absolute value holds two others


def read(text: str, commas_group: bool = True) -> Node:
    """The tree of an answer.

    Args:
      commas_group: whether ``1,000`` outside of brackets is one number rather than two.

    Raises:
      Refused: beyond a limit.
      Unreadable: not in the grammar.
    """
    return read_tokens(tokenise(text), commas_group)


def read_tokens(tokens: list[Token], commas_group: bool = True) -> Node:
    """Like ``read``, from tokens."""
    prepared = plain_words(split_commas(inward_brackets(tokens), commas_group))
    try:
        return _read(prepared, enclosing_bars=False)
    except Unreadable:
        if sum(token.value == "|" for token in prepared) < _NESTED_BARS:
            raise
        return _read(prepared, enclosing_bars=True)


def _read(tokens: list[Token], enclosing_bars: bool) -> Node:
    reader = Reader(list(tokens), enclosing_bars)
    answer = reader.stacked()
    if reader.next is not END:
        raise Unreadable(f"{reader.next.value!r} was not expected there")
    return answer


class Reader(Atoms, Commands):
    """The grammar over one list of tokens; every method reads one rule from ``position`` on."""

    def answer(self, *closing: str) -> Node:
        """A list of items, grouped by ``;``, ``and`` and ``or`` if the groups hold as many items each."""
        groups, separators = [[self.item()]], set()
        while (separator := self.separator()) is not None:
            if self.next is END or self.next.value in closing:
                break  # a comma at the end
            separators.add(separator)
            if separator != ",":
                groups.append([])
            groups[-1].append(self.item())
            if sum(map(len, groups)) > LIST_ITEMS:
                raise Refused(f"the answer lists more than {LIST_ITEMS} items")
        items = [item for group in groups for item in group]
        if len(items) == 1:
            return items[0]
        sizes = {len(group) for group in groups}
        if len(groups) > 1 and len(sizes) == 1 and sizes != {1}:
            return Node("list", tuple(Node("list", tuple(group), ",") for group in groups), ";")
        return Node("list", tuple(items), next((word for word in ("or", "and") if word in separators), ","))

    def stacked(self, *closing: str) -> Node:
        """What stands in braces: an answer, or two of them around ``\\over`` or ``\\choose``."""
        upper = self.answer(*closing)
        if self.accept("\\over"):
            return Node("divide", (upper, self.answer(*closing)), "\\frac")
        if self.accept("\\choose"):
            return Node("function", (upper, self.answer(*closing)), "binomial")
        return upper

    def separator(self) -> str | None:
        found = None
        while (token := self.accept(*SEPARATORS)) is not None:
            found = token if found in (None, ",") and token != "and" or found is None else found
        return found

    def item(self) -> Node:
        operands, operators = [self.set()], []
        while self.next.value in RELATIONS and self.next is not END:
            operators.append(RELATIONS[self.take().value])
            operands.append(self.set())
        return Node("relation", tuple(operands), tuple(operators)) if operators else operands[0]

    def set(self) -> Node:
        left = self.ratio()
        while operator := self.accept("\\cup", "\\cap", "\\setminus"):
            head = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}[operator]
            right = self.ratio()
            parts = left.args if left.head == head != "difference" else (left,)
            left = Node(head, (*parts, right))
        return left

    def ratio(self) -> Node:
        parts = [self.additive()]
        while self.next.value == ":" and not (self.heading and _is_element(parts[0])) and self.accept(":"):
            parts.append(self.additive())
        return Node("ratio", tuple(parts)) if len(parts) > 1 else parts[0]

    def additive(self) -> Node:
        self.enter()
        parts = [self.signed()]
        while operator := self.accept("+", "-", "\\pm", "\\mp"):
            parts.append(with_sign(operator, self.term()))
        self.depth -= 1
        if len(parts) == 2 and parts[0].head == "set_name" and parts[1].head == "negate":
            return Node("difference", (parts[0], parts[1].args[0]))
        return Node("add", tuple(parts)) if len(parts) > 1 else parts[0]

    def signed(self) -> Node:
        sign = self.accept("+", "-", "\\pm", "\\mp")
        if not sign:
            return self.term()
        self.enter()
        operand = self.signed()
        self.depth -= 1
        if operand.head == "modulo":  # -1 mod 2 is 1
            return Node("modulo", (with_sign(sign, operand.args[0]), operand.args[1]))
        return with_sign(sign, operand)

    def term(self) -> Node:
        left = self.postfix()
        while True:
            if self.accept("*", "\\cdot", "\\times"):
                left = product(left, self.factor())
            elif self.accept("/", "\\div"):
                left = Node("divide", (left, self.factor()))
            elif self.next.value == "\\bmod" or self.next.value == "\\pmod":
                self.take()
                left = Node("modulo", (left, self.factor()))
            elif self.next.value == "(" and self.peek(1).value == "\\bmod":
                self.position += 2
                left = Node("modulo", (left, self.factor()))
                self.expect(")")
            elif self.starts_factor():
                right = self.postfix()
                left = mixed(left, right) or product(left, right)
            else:
                return left

    def factor(self) -> Node:
        sign = self.accept("-", "+")
        if not sign:
            return self.postfix()
        self.enter()
        operand = with_sign(sign, self.factor())
        self.depth -= 1
        return operand

    def starts_factor(self) -> bool:
        token = self.next
        if token is END:
            return False
        if token.kind == "number":
            before = self.tokens[self.position - 1]
            return before.kind != "number"
        if token.value == "|":
            return not self.bars or (self.enclosing_bars and self.bar_opens_within_bars())
        if token.kind == "letter":
            return not (self.differential and token.value == "d" and self.peek(1).kind in ("letter", "command"))
        if token.kind == "mark":
            return token.value in ("(", "[", "{", "\\{", "\\|")
        return token.kind == "command" and (
            token.value in FUNCTIONS
            or token.value in CONSTANTS
            or token.value in GREEK_SYMBOLS
            or token.value in ACCENTS
            or token.value
            in ("\\frac", "\\sqrt", "\\binom", "\\sum", "\\prod", "\\int", "\\lim", "\\begin", "\\lfloor", "\\lceil")
            or token.value in ("\\langle", "\\log", "\\operatorname", "\\mathbb")
        )

    def postfix(self) -> Node:
        base = self.atom()
        while True:
            if self.accept("^"):
                base = self.raised(base)
            elif self.accept("!"):
                base = Node("factorial", (base,))
            elif self.accept("%"):
                base = Node("percent", (base,))
            elif base.head == "number" and self.next.value == "_" and self.tokens[self.position - 1].value == ")":
                base = self.based(str(base.value))
            elif base.head in ("number", "decimal") and self.accept("\\circ"):
                base = Node("degrees", (base,))
            elif self.next.value == "'" and self.accept("'"):
                base = decorated(base, "'")
            elif self.next.kind == "text":
                base = self.measured(base)
            else:
                return base

    def raised(self, base: Node) -> Node:
        if self.next.value == "\\circ" or (self.next.value == "{" and self.peek(1).value == "\\circ"):
            braced = self.accept("{")
            self.take()
            if braced:
                self.expect("}")
            return Node("degrees", (base,))
        if self.next.value == "'" or (self.next.value == "{" and self.peek(1).value == "'"):
            braced = self.accept("{")
            mark = ""
            while self.accept("'"):
                mark += "'"
            if braced:
                self.expect("}")
            return decorated(base, mark)
        return Node("power", (base, self.exponent()))

    def exponent(self) -> Node:
        self.enter()
        sign = self.accept("-", "+")
        inner = self.braced() if self.next.value == "{" else self.atom()
        if inner.head == "set" and len(inner.args) == 1:
            inner = inner.args[0]
        if self.next.value == "^" and inner.head in ("number", "symbol", "constant") and self.accept("^"):
            inner = Node("power", (inner, self.exponent()))
        self.depth -= 1
        return with_sign(sign, inner) if sign else inner

    def measured(self, quantity: Node) -> Node:
        """A quantity and the words after it, with their exponent: ``5 \\text{ cm}^2``."""
        words = [self.take().value]
        while True:
            if self.next.kind == "text":
                words.append(self.take().value)
            elif self.next.value == "^" and self.accept("^"):
                exponent = self.exponent()
                if exponent.head not in ("number", "negate"):
                    raise Unreadable("a unit has an exponent that is not a number")
                words[-1] += f"^{integer_value(exponent)}"
            elif self.next.value in ("/", "\\cdot") and self.peek(1).kind == "text":
                words.append({"\\cdot": "*"}.get(self.next.value, "/"))
                self.take()
            else:
                return Node("measured", (quantity,), " ".join(words))


def _is_element(node: Node) -> bool:
    """What may stand before the colon of ``{x : ...}`` and ``{x \\in \\mathbb{R} : ...}``."""
    return is_name(node) or node.head == "set_name"
