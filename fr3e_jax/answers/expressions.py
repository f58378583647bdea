"""The rules of the grammar from a whole answer down to a factor; ``reader`` shows all rules."""

from __future__ import annotations

from fr3e_jax.answers.atoms import atom, based
from fr3e_jax.answers.brackets import exponent, operand
from fr3e_jax.answers.cursor import END, Cursor
from fr3e_jax.answers.expression_shapes import is_name, unit_words
from fr3e_jax.answers.expression_tree import (
    Node,
    decorated,
    integer_value,
    mixed,
    number_node,
    product,
    with_sign,
)
from fr3e_jax.answers.limits import LIST_ITEMS, Refused, Unreadable
from fr3e_jax.answers.tokens import Token
from fr3e_jax.answers.units import ORDINALS, multiple
from fr3e_jax.answers.vocabulary import CLOSING, NUMBER_SETS, OPENING, RELATIONS, SEPARATORS

_AFTER_SET = {END.value, "}", *CLOSING, *SEPARATORS, *RELATIONS, "\\cup", "\\cap", "\\setminus", "|", ":"}


def answer(cursor: Cursor, *closing: str) -> Node:
    """A list of items, grouped by ``;``, ``and`` and ``or`` if the groups hold as many items each."""
    groups, separators = [[item(cursor)]], set()
    while (word := cursor.separator()) is not None:
        if cursor.next is END or cursor.next.value in closing:
            break  # a comma at the end
        separators.add(word)
        if word != ",":
            groups.append([])
        groups[-1].append(item(cursor))
        if sum(map(len, groups)) > LIST_ITEMS:
            raise Refused(f"the answer lists more than {LIST_ITEMS} items")
    items = [member for group in groups for member in group]
    if len(items) == 1:
        return items[0]
    sizes = {len(group) for group in groups}
    if len(groups) > 1 and len(sizes) == 1 and sizes != {1}:
        return Node("list", tuple(Node("list", tuple(group), ",") for group in groups), ";")
    return Node("list", tuple(items), next((word for word in ("or", "and") if word in separators), ","))


def item(cursor: Cursor) -> Node:
    """One answer: a set expression, or several with relations between them."""
    operands, operators = [_set_expression(cursor)], []
    while cursor.next.value in RELATIONS and cursor.next is not END:
        operators.append(RELATIONS[cursor.take().value])
        modulus = operand(cursor) if operators[-1] == "==" and cursor.accept("_") else None  # x \equiv_5 2
        right = _set_expression(cursor)
        operands.append(Node("modulo", (right, modulus)) if modulus else right)
    return Node("relation", tuple(operands), tuple(operators)) if operators else operands[0]


def _set_expression(cursor: Cursor) -> Node:
    """Ratios with set operations between them."""
    left = _ratio(cursor)
    while operator := cursor.accept("\\cup", "\\cap", "\\setminus"):
        head = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}[operator]
        right = _ratio(cursor)
        parts = left.args if left.head == head != "difference" else (left,)
        left = Node(head, (*parts, right))
    return left


def _ratio(cursor: Cursor) -> Node:
    """Sums with colons between them; a colon ends the head of ``{x : ...}``."""
    parts = [additive(cursor)]
    while cursor.next.value == ":" and not _ends_heading(cursor, parts[0]) and cursor.accept(":"):
        parts.append(additive(cursor))
    return Node("ratio", tuple(parts)) if len(parts) > 1 else parts[0]


def additive(cursor: Cursor) -> Node:
    """A sum."""
    cursor.enter()
    parts = [with_sign("\\pm", _signed(cursor)) if _plus_minus(cursor) else _signed(cursor)]
    while operator := cursor.accept("+", "-", "\\pm", "\\mp"):
        parts.append(with_sign(operator, _signed(cursor)))
    cursor.depth -= 1
    if len(parts) == 2 and parts[0].head == "set_name" and parts[1].head == "negate":
        return Node("difference", (parts[0], parts[1].args[0]))
    return Node("add", tuple(parts)) if len(parts) > 1 else parts[0]


def _plus_minus(cursor: Cursor) -> bool:
    """Take ``+-`` before the first term of a sum: there it is written for a plus-minus sign."""
    if cursor.next.value != "+" or cursor.peek(1) != Token("mark", "-"):
        return False
    cursor.position += 2
    return True


def _signed(cursor: Cursor) -> Node:
    """A product with the signs before it."""
    sign = cursor.accept("+", "-", "\\pm", "\\mp")
    if not sign:
        return term(cursor)
    cursor.enter()
    unsigned = _signed(cursor)
    cursor.depth -= 1
    if unsigned.head == "modulo":  # -1 mod 2 is 1
        return Node("modulo", (with_sign(sign, unsigned.args[0]), unsigned.args[1]))
    return with_sign(sign, unsigned)


def term(cursor: Cursor) -> Node:
    """A product, written with signs or side by side."""
    left = postfix(cursor)
    while cursor.next is not END:
        if cursor.accept("*", "\\cdot", "\\times"):
            left = product(left, _factor(cursor))
        elif cursor.accept("/", "\\div"):
            left = Node("divide", (left, _factor(cursor)))
        elif cursor.next.value == "\\bmod" or cursor.next.value == "\\pmod":
            cursor.take()
            left = Node("modulo", (left, _factor(cursor)))
        elif cursor.next.value == "(" and cursor.peek(1).value == "\\bmod":
            cursor.position += 2
            left = Node("modulo", (left, _factor(cursor)))
            cursor.expect(")")
        elif cursor.starts_factor():
            bracketed = cursor.last.value in CLOSING or cursor.next.value in OPENING  # 2(\frac34) is a product
            right = postfix(cursor)
            unit = right.head == "divide" and unit_words(right)
            if unit:
                left = Node("measured", (left,), unit)
            else:
                left = (not bracketed and mixed(left, right)) or product(left, right)
        else:
            break
    return left


def _factor(cursor: Cursor) -> Node:
    """A factor after a multiplication or division sign, with its own signs."""
    sign = cursor.accept("-", "+")
    if not sign:
        return postfix(cursor)
    cursor.enter()
    factor = with_sign(sign, _factor(cursor))
    cursor.depth -= 1
    return factor


def postfix(cursor: Cursor) -> Node:
    """An atom and what follows it closely: exponents, factorials, per cent, primes, units."""
    base = atom(cursor)
    while cursor.next is not END:
        if cursor.accept("^"):
            base = _raised(cursor, base)
        elif cursor.accept("!"):
            base = Node("factorial", (base,))
        elif cursor.accept("%"):
            base = Node("percent", (base,))
        elif base.head == "number" and cursor.next.value == "_" and cursor.last.value == ")":
            base = based(cursor, str(base.value))
        elif base.head in ("number", "decimal") and cursor.accept("\\circ"):
            base = Node("degrees", (base,))
        elif base.head == "degrees" and cursor.next.value in ("C", "F"):
            base = Node("measured", base.args, f"°{cursor.take().value}")
        elif cursor.next.value == "'" and cursor.accept("'"):
            base = decorated(base, "'")
        elif cursor.next.kind == "text":
            base = _measured(cursor, base)
        else:
            break
    return base


def _raised(cursor: Cursor, base: Node) -> Node:
    """A base after ``^``: degrees, primes or a power."""
    if base.head == "symbol" and base.value in NUMBER_SETS and cursor.peek(1).value in _AFTER_SET:
        if sign := cursor.accept("+", "-"):
            return Node("set_name", (), base.value + sign)  # \mathbf{R}^+
    braced = cursor.peek(1).value in ("\\circ", "'", *ORDINALS) and cursor.accept("{")
    if cursor.accept("\\circ"):
        raised = Node("degrees", (base,))
    elif cursor.next.kind == "text" and cursor.next.value in ORDINALS:
        raised = Node("measured", (base,), cursor.take().value)  # 5^{\text{th}}
    elif cursor.next.value == "'":
        marks = ""
        while cursor.accept("'"):
            marks += "'"
        raised = decorated(base, marks)
    else:
        return Node("power", (base, exponent(cursor)))
    if braced:
        cursor.expect("}")
    return raised


def _measured(cursor: Cursor, quantity: Node) -> Node:
    """A quantity and the words after it, with their exponent: ``5 \\text{ cm}^2``."""
    first, *rest = cursor.take().value.split()
    while (factor := multiple(first)) is not None:  # 2 \text{ million people}
        quantity = Node("multiply", (quantity, number_node(factor)), "in words")
        if not rest:
            return quantity
        first, *rest = rest
    words = [" ".join([first, *rest])]
    while True:
        if cursor.next.kind == "text":
            words.append(cursor.take().value)
        elif cursor.next.value == "^" and cursor.accept("^"):
            power = exponent(cursor)
            if power.head not in ("number", "negate"):
                raise Unreadable("a unit has an exponent that is not a number")
            words[-1] += f"^{integer_value(power)}"
        elif cursor.next.value in ("/", "\\cdot") and cursor.peek(1).kind == "text":
            words.append({"\\cdot": "*"}.get(cursor.next.value, "/"))
            cursor.take()
        else:
            return Node("measured", (quantity,), " ".join(words))


def _ends_heading(cursor: Cursor, node: Node) -> bool:
    """Return whether a colon ends the head of ``{x : ...}``, ``{x \\in \\mathbb{R} : ...}`` or ``{2k : k \\in ..}``."""
    return cursor.heading and (is_name(node) or node.head == "set_name" or cursor.peek(2).value == "\\in")
