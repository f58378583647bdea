"""The rules for LaTeX commands: fractions, roots, functions, accents, sets of numbers."""

from __future__ import annotations

from fr3e_jax.rewards.math import atoms, big_operators, environments, expressions
from fr3e_jax.rewards.math.cursor import Cursor
from fr3e_jax.rewards.math.expression_tree import Node, number
from fr3e_jax.rewards.math.limits import Unreadable
from fr3e_jax.rewards.math.nodes import integer_value, literal_node, product, with_sign
from fr3e_jax.rewards.math.tokens import Token
from fr3e_jax.rewards.math.vocabulary import ACCENTS, CONSTANTS, FUNCTIONS, GREEK_SYMBOLS, INVERSE, SETS

_NO_FURTHER_ARGUMENT = {*FUNCTIONS, "\\log", "(", "["}


def command(cursor: Cursor, name: str) -> Node:
    """The tree of a LaTeX command and its arguments; the command itself is taken already."""
    if name == "\\frac":
        return _fraction(cursor)
    if name == "\\sqrt":
        return _root(cursor)
    if name == "\\binom":
        return Node("function", (operand(cursor), operand(cursor)), "binomial")
    if name in CONSTANTS:
        return Node("constant", (), CONSTANTS[name])
    if name in GREEK_SYMBOLS:
        return Node("symbol", (), name + atoms.subscript(cursor))
    if name in ("\\sum", "\\prod"):
        return big_operators.big_operator(cursor, "sum" if name == "\\sum" else "product")
    if name in FUNCTIONS:
        return _function_call(cursor, FUNCTIONS[name])
    if name == "\\log":
        return _logarithm(cursor)
    if name in ("\\lfloor", "\\lceil"):
        inner = expressions.additive(cursor)
        cursor.expect({"\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}[name])
        return Node("function", (inner,), {"\\lfloor": "floor", "\\lceil": "ceil"}[name])
    if name in ACCENTS:
        return _accented(cursor, name)
    if name == "\\mathbb" or name in SETS:
        return _number_set(cursor, name)
    if name == "\\begin":
        return environments.environment(cursor)
    if name in ("\\int", "\\lim"):
        return big_operators.integral(cursor) if name == "\\int" else big_operators.limit(cursor)
    raise Unreadable(f"{name!r} is not in the grammar")


def operand(cursor: Cursor) -> Node:
    """An argument of a command: in braces, or the one digit, letter or command that follows."""
    if cursor.next.value == "{":
        return atoms.in_braces(cursor)
    if cursor.next.kind == "number" and len(cursor.next.value) > 1:
        digits = cursor.take().value
        cursor.position -= 1
        rest = Token("number", digits[1:]) if digits[1] != "." else Token("number", "0" + digits[1:])
        cursor.tokens[cursor.position] = rest
        return literal_node(digits[0])
    return atoms.atom(cursor)


def _fraction(cursor: Cursor) -> Node:
    """A fraction, or a derivative written as one."""
    if cursor.next.value == "{" and cursor.peek(1).value in ("d", "\\partial") and cursor.peek(2).value == "}":
        return big_operators.derivative(cursor)
    upper = operand(cursor)
    return Node("divide", (upper, operand(cursor)), "\\frac")


def _root(cursor: Cursor) -> Node:
    """A root with its index."""
    index = number(2)
    if cursor.accept("["):
        index = expressions.additive(cursor)
        cursor.expect("]")
    return Node("root", (_operand_of_root(cursor), index))


def _operand_of_root(cursor: Cursor) -> Node:
    return atoms.bracket(cursor, cursor.take().value) if cursor.next.value == "(" else operand(cursor)


def _function_call(cursor: Cursor, name: str) -> Node:
    """A function with its exponent and arguments: ``\\\\sin^2 x``."""
    power = None
    if cursor.accept("^"):
        power = expressions.exponent(cursor)
        if name in INVERSE and power == Node("negate", (number(1),)):
            name, power = INVERSE[name], None
    called = Node("function", _arguments(cursor), name)
    return Node("power", (called, power)) if power else called


def _logarithm(cursor: Cursor) -> Node:
    """A logarithm with its base."""
    base = (operand(cursor),) if cursor.accept("_") else ()
    power = expressions.exponent(cursor) if cursor.accept("^") else None
    called = Node("function", (*_arguments(cursor), *base), "log")
    return Node("power", (called, power)) if power else called


def _arguments(cursor: Cursor) -> tuple[Node, ...]:
    """The arguments of a function: in brackets, in braces, or the product that follows."""
    if cursor.accept("("):
        content = expressions.answer(cursor, ")")
        cursor.expect(")")
        return content.args if content.head == "list" else (content,)
    if cursor.next.value == "{":
        return (atoms.in_braces(cursor),)
    if cursor.next.value in FUNCTIONS or cursor.next.value == "\\log":
        return (expressions.postfix(cursor),)
    argument = _signed_postfix(cursor)
    while expressions.starts_factor(cursor) and cursor.next.value not in _NO_FURTHER_ARGUMENT:
        argument = product(argument, expressions.postfix(cursor))
    return (argument,)


def _signed_postfix(cursor: Cursor) -> Node:
    sign = cursor.accept("-", "+")
    return with_sign(sign, expressions.postfix(cursor)) if sign else expressions.postfix(cursor)


def _accented(cursor: Cursor, accent: str) -> Node:
    """``\\overline{AB}`` and the like: a name."""
    inner = operand(cursor)
    if accent in ("\\angle", "\\triangle"):
        while cursor.next.kind == "letter":
            inner = product(inner, expressions.postfix(cursor))
    names = [n.value for n in inner.walk() if n.head in ("symbol", "constant", "number", "text")]
    return Node("symbol", (), accent + "".join(str(n) for n in sorted(map(str, names))) + atoms.subscript(cursor))


def _number_set(cursor: Cursor, name: str) -> Node:
    """A set of numbers such as the real ones, with its dimension or sign."""
    if name == "\\mathbb":
        braced = cursor.accept("{")
        name = SETS.get(f"\\mathbb{cursor.take().value}")
        if braced:
            cursor.expect("}")
    else:
        name = SETS[name]
    if name is None:
        raise Unreadable("a letter in blackboard bold is no known set")
    if cursor.accept("^"):
        signed = cursor.next.value in ("+", "-")
        name += cursor.take().value if signed else f"^{integer_value(expressions.exponent(cursor))}"
    return Node("set_name", (), name)
