"""The rules for sums, products, integrals, limits and derivatives."""

from __future__ import annotations

from fr3e_jax.rewards.math.cursor import Cursor
from fr3e_jax.rewards.math.expression_tree import Node, number
from fr3e_jax.rewards.math.limits import Unreadable
from fr3e_jax.rewards.math.nodes import literal_node, with_index, with_sign
from fr3e_jax.rewards.math.vocabulary import CONSTANTS, GREEK_SYMBOLS


class BigOperators(Cursor):
    """Rules of ``reader.Reader``."""

    def big_operator(self, head: str) -> Node:
        upper = self.script() if self.accept("^") else None
        self.expect("_")
        self.expect("{")
        index = self.take()
        if index.kind != "letter":
            raise Unreadable("a sum has an index that is not a letter")
        self.expect("=")
        lower = self.additive()
        self.expect("}")
        if upper is None:
            self.expect("^")
            upper = self.script()
        body = self.term()
        return Node(head, (with_index(body, index.value), lower, upper), index.value)

    def script(self) -> Node:
        """What stands above or below a sum or integral: in braces, or one token."""
        if self.next.value == "{":
            return self.braced()
        sign, token = self.accept("-", "+"), self.take()
        if token.kind == "number":
            bound = literal_node(token.value)
        elif token.value in CONSTANTS:
            bound = Node("constant", (), CONSTANTS[token.value])
        elif token.kind == "letter" or token.value in GREEK_SYMBOLS:
            bound = Node("symbol", (), token.value)
        else:
            raise Unreadable("a bound of a sum or integral was expected")
        return with_sign(sign, bound) if sign else bound

    def integral(self) -> Node:
        """``\\int_a^b f(x) dx``, or without bounds."""
        bounds: tuple[Node, ...] = ()
        if self.accept("_"):
            lower = self.script()
            self.expect("^")
            bounds = (lower, self.script())
        elif self.accept("^"):
            upper = self.script()
            self.expect("_")
            bounds = (self.script(), upper)
        before, self.differential = self.differential, True
        body = self.additive() if self.next.value != "d" else number(1)
        self.differential = before
        self.expect("d")
        return Node("integral", (body, *bounds), self.variable())

    def limit(self) -> Node:
        """``\\lim_{x \\to a} f(x)``; ``a^+`` and ``a^-`` are one-sided."""
        self.expect("_")
        self.expect("{")
        variable = self.variable()
        if not self.accept("\\to", "\\Rightarrow"):
            raise Unreadable("a limit has no arrow")
        point, side = self.signed_atom(), "+-"
        if self.accept("^"):
            side = self.accept("+", "-") or ""
            if not side:
                self.expect("{")
                side = self.take().value
                self.expect("}")
        self.expect("}")
        return Node("limit", (self.term(), point), (variable, side))

    def signed_atom(self) -> Node:
        sign = self.accept("-", "+")
        return with_sign(sign, self.atom()) if sign else self.atom()

    def derivative(self) -> Node:
        """``\\frac{d}{dx} f(x)``, of one variable and of the first order."""
        self.position += 3
        self.expect("{")
        self.take()
        variable = self.variable()
        self.expect("}")
        return Node("derivative", (self.term(),), variable)

    def variable(self) -> str:
        token = self.take()
        if token.kind != "letter" and token.value not in GREEK_SYMBOLS:
            raise Unreadable("a variable was expected")
        return token.value + self.subscript()
