"""The rules for what an expression is built of: numbers, names, brackets, sets, absolute values."""

from __future__ import annotations

from fractions import Fraction

from fr3e_jax.rewards.math.cursor import END, Cursor
from fr3e_jax.rewards.math.expression_tree import Node, number
from fr3e_jax.rewards.math.limits import LIST_ITEMS, Refused, Unreadable
from fr3e_jax.rewards.math.nodes import literal_node, mixed_number, three_digits
from fr3e_jax.rewards.math.tokens import Token
from fr3e_jax.rewards.math.vocabulary import OPENING, UNDEFINED_FUNCTIONS


class Atoms(Cursor):
    """Rules of ``reader.Reader``, which has those that these call in turn: ``answer``, ``item``, ``additive``."""

    def atom(self) -> Node:
        self.enter()
        try:
            return self._atom()
        finally:
            self.depth -= 1

    def _atom(self) -> Node:
        token = self.take()
        if token is END:
            raise Unreadable("the answer ends where something was expected")
        if token.kind == "number":
            return self.literal(token)
        if token.kind == "letter":
            return self.name(token.value)
        if token.kind == "text":
            return Node("text", (), token.value)
        if token.value == "{":
            self.position -= 1
            return self.braced()
        if token.value in OPENING:
            return self.bracket(token.value)
        if token.value in ("|", "\\|"):
            return self.bars_around(token.value)
        return self.command(token.value)

    def literal(self, token: Token) -> Node:
        digits = token.value
        if len(digits) <= 3 and "." not in digits and digits[0] != "0":
            while self.next.kind == "number" and self.next.spaced and three_digits(self.next.value):
                digits += self.take().value  # 1 000 000
        if self.next.value == "_" and "." not in digits:
            return self.based(digits)
        if "." in digits and self.next.value in ("\\overline", "\\bar", "\\dot"):
            return self.repeating(digits)
        if (
            self.next.kind == "number"
            and self.next.spaced
            and self.peek(1).value == "/"
            and self.peek(2).kind == "number"
        ):
            whole, upper = digits, self.take().value
            self.take()
            return mixed_number(whole, upper, self.take().value)  # 1 1/2
        if self.next.value in ("e", "E") and not self.next.spaced and (exponent := self.scientific()) is not None:
            return Node("multiply", (literal_node(digits), Node("power", (number(10), number(exponent)))))
        return literal_node(digits)

    def repeating(self, digits: str) -> Node:
        """``0.1\\overline{6}`` is a sixth."""
        self.take()
        period = self.operand()
        written = str(self.tokens[self.position - (2 if self.tokens[self.position - 1].value == "}" else 1)].value)
        if period.head != "number" or not written.isdigit():
            raise Unreadable("a repeating decimal has a period that is no number")
        places = len(digits.partition(".")[2])
        start = Fraction(int(digits.replace(".", "")), 10**places)
        return number(start + Fraction(int(written), (10 ** len(written) - 1) * 10**places))

    def scientific(self) -> int | None:
        """The exponent of ``1e-9``; None for ``2e`` and ``2e+x``."""
        signed = self.peek(1).value in ("+", "-") and not self.peek(1).spaced
        digits = self.peek(2 if signed else 1)
        if digits.kind != "number" or digits.spaced or not digits.value.isdigit() or len(digits.value) > 6:
            return None
        sign = -1 if self.peek(1).value == "-" else 1
        self.position += 3 if signed else 2
        return sign * int(digits.value)

    def based(self, digits: str) -> Node:
        self.take()
        base = self.braced() if self.next.value == "{" else self.atom()
        if base.head not in ("number", "text"):
            raise Unreadable("a number has a subscript that is not a base")
        return Node("based", (), (digits.lstrip("0") or "0", str(base.value)))

    def name(self, letter: str) -> Node:
        name = letter + self.subscript()
        if name == "e":
            return Node("constant", (), "e")
        at_zero = [self.peek(ahead).value for ahead in range(3)] == ["(", "0", ")"]
        if at_zero or (name[0] in UNDEFINED_FUNCTIONS and self.next.value == "("):  # nobody writes a product with 0
            return self.applied(name)
        if name[0] in UNDEFINED_FUNCTIONS and self.next.value == "{" and self.peek(1).value == "(":
            self.take()
            called = self.applied(name)
            self.expect("}")
            return called
        if name == "i":
            return Node("constant", (), "i")
        return Node("symbol", (), name)

    def applied(self, name: str) -> Node:
        self.expect("(")
        arguments = self.answer(")")
        self.expect(")")
        return Node("apply", arguments.args if arguments.head == "list" else (arguments,), name)

    def subscript(self) -> str:
        """The subscript as written, without blanks and braces; it is part of a name."""
        if not self.accept("_"):
            return ""
        if not self.accept("{"):
            return f"_{self.take().value}"
        depth, parts = 1, []
        while depth:
            token = self.take()
            if token is END:
                raise Unreadable("a subscript does not end")
            depth += {"{": 1, "}": -1}.get(token.value, 0)
            parts.append(token.value)
        return "_" + "".join(parts[:-1])

    def braced(self) -> Node:
        self.expect("{")
        if self.accept("}"):
            raise Unreadable("there are empty braces")
        bars, self.bars = self.bars, 0
        inner = self.stacked("}")
        self.bars = bars
        self.expect("}")
        return inner

    def bracket(self, opening: str) -> Node:
        bars, self.bars = self.bars, 0
        if opening == "\\{":
            inner = self.set_braces()
        else:
            inner = self._bracket(opening)
        self.bars = bars
        return inner

    def _bracket(self, opening: str) -> Node:
        if self.accept(OPENING[opening]):
            raise Unreadable("there are empty brackets")
        content = self.answer(")", "]", "\\rangle")
        closing = self.accept(")", "]", "\\rangle")
        if closing is None:
            raise Unreadable(f"{opening!r} is not closed")
        items = (
            tuple(i for g in content.args for i in (g.args if g.head == "list" else (g,)))
            if content.head == "list"
            else (content,)
        )
        if len(items) == 1 and OPENING[opening] == closing and opening != "\\langle":
            return items[0] if items[0].head != "list" else Node("bracket", items, opening + closing)
        if len(items) == 1:
            raise Unreadable("an interval has one end")
        return Node("bracket", items, "()" if opening == "\\langle" else opening + closing)

    def set_braces(self) -> Node:
        if self.accept("\\}"):
            return Node("set")
        self.bars = 1  # so that | after the first item is "such that", not the start of an absolute value
        self.heading, before = True, self.heading
        first = self.item()
        self.heading = before
        if self.accept("|", ":"):
            self.bars = 0
            condition = self.answer("\\}")
            self.expect("\\}")
            return Node("builder", (first, condition))
        self.bars = 0
        items = [first]
        while self.separator() and self.next.value != "\\}":
            items.append(self.item())
            if len(items) > LIST_ITEMS:
                raise Refused(f"a set has more than {LIST_ITEMS} elements")
        self.expect("\\}")
        return Node("set", tuple(items))

    def bars_around(self, bar: str) -> Node:
        self.bars += 1
        inner = self.additive()
        self.bars -= 1
        self.expect(bar)
        if inner.head == "matrix":
            return Node("function", (inner,), "det")
        return Node("function", (inner,), "abs")
