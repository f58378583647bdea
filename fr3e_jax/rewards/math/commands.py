"""The rules for LaTeX commands: fractions, roots, functions, accents, sets of numbers."""

from __future__ import annotations

from fr3e_jax.rewards.math.big_operators import BigOperators
from fr3e_jax.rewards.math.environments import Environments
from fr3e_jax.rewards.math.expression_tree import Node, number
from fr3e_jax.rewards.math.limits import Unreadable
from fr3e_jax.rewards.math.nodes import integer_value, literal_node, product, with_sign
from fr3e_jax.rewards.math.tokens import Token
from fr3e_jax.rewards.math.vocabulary import ACCENTS, CONSTANTS, FUNCTIONS, GREEK_SYMBOLS, INVERSE, SETS


class Commands(BigOperators, Environments):
    """Rules of ``reader.Reader``."""

    def command(self, name: str) -> Node:
        if name == "\\frac":
            return self.fraction()
        if name == "\\sqrt":
            return self.root()
        if name == "\\binom":
            return Node("function", (self.operand(), self.operand()), "binomial")
        if name in CONSTANTS:
            return Node("constant", (), CONSTANTS[name])
        if name in GREEK_SYMBOLS:
            return Node("symbol", (), name + self.subscript())
        if name in ("\\sum", "\\prod"):
            return self.big_operator("sum" if name == "\\sum" else "product")
        if name in FUNCTIONS:
            return self.function(FUNCTIONS[name])
        if name == "\\log":
            return self.logarithm()
        if name in ("\\lfloor", "\\lceil"):
            inner = self.additive()
            self.expect({"\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}[name])
            return Node("function", (inner,), {"\\lfloor": "floor", "\\lceil": "ceil"}[name])
        if name in ACCENTS:
            return self.accented(name)
        if name == "\\mathbb" or name in SETS:
            return self.number_set(name)
        if name == "\\begin":
            return self.environment()
        if name in ("\\int", "\\lim"):
            return self.integral() if name == "\\int" else self.limit()
        raise Unreadable(f"{name!r} is not in the grammar")

    def operand(self) -> Node:
        """An argument of a command: in braces, or the one digit, letter or command that follows."""
        if self.next.value == "{":
            return self.braced()
        if self.next.kind == "number" and len(self.next.value) > 1:
            digits = self.take().value
            self.position -= 1
            rest = Token("number", digits[1:]) if digits[1] != "." else Token("number", "0" + digits[1:])
            self.tokens[self.position] = rest
            return literal_node(digits[0])
        return self.atom()

    def fraction(self) -> Node:
        if self.next.value == "{" and self.peek(1).value in ("d", "\\partial") and self.peek(2).value == "}":
            return self.derivative()
        upper = self.operand()
        return Node("divide", (upper, self.operand()), "\\frac")

    def root(self) -> Node:
        index = number(2)
        if self.accept("["):
            index = self.additive()
            self.expect("]")
        return Node("root", (self.operand_of_root(), index))

    def operand_of_root(self) -> Node:
        return self.bracket(self.take().value) if self.next.value == "(" else self.operand()

    def function(self, name: str) -> Node:
        power = None
        if self.accept("^"):
            power = self.exponent()
            if name in INVERSE and power == Node("negate", (number(1),)):
                name, power = INVERSE[name], None
        called = Node("function", self.arguments(), name)
        return Node("power", (called, power)) if power else called

    def logarithm(self) -> Node:
        base = (self.operand(),) if self.accept("_") else ()
        power = self.exponent() if self.accept("^") else None
        called = Node("function", (*self.arguments(), *base), "log")
        return Node("power", (called, power)) if power else called

    def arguments(self) -> tuple[Node, ...]:
        if self.accept("("):
            content = self.answer(")")
            self.expect(")")
            return content.args if content.head == "list" else (content,)
        if self.next.value == "{":
            return (self.braced(),)
        if self.next.value in FUNCTIONS or self.next.value == "\\log":
            return (self.postfix(),)
        argument = self.signed_postfix()
        while self.starts_factor() and self.next.value not in FUNCTIONS and self.next.value not in ("\\log", "(", "["):
            argument = product(argument, self.postfix())
        return (argument,)

    def signed_postfix(self) -> Node:
        sign = self.accept("-", "+")
        return with_sign(sign, self.postfix()) if sign else self.postfix()

    def accented(self, accent: str) -> Node:
        """``\\overline{AB}`` and the like: a name."""
        inner = self.operand()
        if accent in ("\\angle", "\\triangle"):
            while self.next.kind == "letter":
                inner = product(inner, self.postfix())
        names = [n.value for n in inner.walk() if n.head in ("symbol", "constant", "number", "text")]
        return Node("symbol", (), accent + "".join(str(n) for n in sorted(map(str, names))) + self.subscript())

    def number_set(self, name: str) -> Node:
        if name == "\\mathbb":
            braced = self.accept("{")
            name = SETS.get(f"\\mathbb{self.take().value}")
            if braced:
                self.expect("}")
        else:
            name = SETS[name]
        if name is None:
            raise Unreadable("a letter in blackboard bold is no known set")
        if self.accept("^"):
            name += f"^{integer_value(self.exponent())}" if self.next.value not in ("+", "-") else self.take().value
        return Node("set_name", (), name)
