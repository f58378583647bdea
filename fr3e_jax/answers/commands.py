"""The rules for LaTeX commands: fractions, roots, functions, accents, sets of numbers, matrices."""

from __future__ import annotations

from fr3e_jax.answers.big_operators import big_operator, derivative, integral, limit
from fr3e_jax.answers.brackets import bracket, exponent, in_braces, operand
from fr3e_jax.answers.cursor import END, Cursor
from fr3e_jax.answers.expression_tree import Node, integer_value, listed, number_node, product, with_sign
from fr3e_jax.answers.limits import MATRIX_ENTRIES, Refused, Unreadable
from fr3e_jax.answers.tokens import Token
from fr3e_jax.answers.vocabulary import ACCENTS, CONSTANTS, FUNCTIONS, GREEK_SYMBOLS, INVERSE, SETS

_CONDITIONS = {"if", "for", "when", "where", "whenever", "provided"}
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
        return Node("symbol", (), name + cursor.subscript())
    if name in ("\\sum", "\\prod"):
        return big_operator(cursor, "sum" if name == "\\sum" else "product")
    if name in FUNCTIONS or name == "\\log":
        return _function_call(cursor, FUNCTIONS.get(name, "log"))
    if name in ("\\lfloor", "\\lceil"):
        inner = cursor.rules.additive(cursor)
        cursor.expect(f"\\r{name[2:]}")
        return Node("function", (inner,), name[2:])
    if name in ACCENTS:
        return _accented(cursor, name)
    if name == "\\mathbb" or name in SETS:
        return _number_set(cursor, name)
    if name == "\\begin":
        return environment(cursor)
    if name in ("\\int", "\\lim"):
        return integral(cursor) if name == "\\int" else limit(cursor)
    raise Unreadable(f"{name!r} is not in the grammar")


def _fraction(cursor: Cursor) -> Node:
    """A fraction, or a derivative written as one."""
    if cursor.next.value == "{" and cursor.peek(1).value in ("d", "\\partial") and cursor.peek(2).value == "}":
        return derivative(cursor)
    upper = operand(cursor)
    return Node("divide", (upper, operand(cursor)), "\\frac")


def _root(cursor: Cursor) -> Node:
    """A root with its index."""
    index = number_node(2)
    if cursor.accept("["):
        index = cursor.rules.additive(cursor)
        cursor.expect("]")
    radicand = bracket(cursor, cursor.take().value) if cursor.next.value == "(" else operand(cursor)
    return Node("root", (radicand, index))


def _function_call(cursor: Cursor, name: str) -> Node:
    """A function with its exponent and arguments, ``\\sin^2 x``; a logarithm with its base, too."""
    base = (operand(cursor),) if name == "log" and cursor.accept("_") else ()
    power = exponent(cursor) if cursor.accept("^") else None
    if name in INVERSE and power == Node("negate", (number_node(1),)):
        name, power = INVERSE[name], None
    called = Node("function", (*_arguments(cursor), *base), name)
    return Node("power", (called, power)) if power else called


def _arguments(cursor: Cursor) -> tuple[Node, ...]:
    """The arguments of a function: in brackets, in braces, or the product that follows."""
    if cursor.accept("("):
        content = cursor.rules.answer(cursor, ")")
        cursor.expect(")")
        return listed(content)
    if cursor.next.value == "{":
        return (in_braces(cursor),)
    if cursor.next.value in FUNCTIONS or cursor.next.value == "\\log":
        return (cursor.rules.postfix(cursor),)
    argument = with_sign(cursor.accept("-", "+"), cursor.rules.postfix(cursor))
    while cursor.starts_factor() and cursor.next.value not in _NO_FURTHER_ARGUMENT:
        argument = product(argument, cursor.rules.postfix(cursor))
    return (argument,)


def _accented(cursor: Cursor, accent: str) -> Node:
    """``\\overline{AB}`` and the like: a name."""
    inner = operand(cursor)
    if accent in ("\\angle", "\\triangle"):
        while cursor.next.kind == "letter":
            inner = product(inner, cursor.rules.postfix(cursor))
    names = [n.value for n in inner.walk() if n.head in ("symbol", "constant", "number", "text")]
    return Node("symbol", (), accent + "".join(str(n) for n in sorted(map(str, names))) + cursor.subscript())


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
    marks = ""
    while script := cursor.accept("^", "_"):
        marks += _set_mark(cursor, script)
    return Node("set_name", (), name + (marks if marks != "0+" else "+0"))


def _set_mark(cursor: Cursor, script: str) -> str:
    """The exponent or subscript of a set of numbers: ``+`` positive, ``-0`` not positive, ``*`` not 0, a dimension."""
    if sign := cursor.accept("+", "-"):
        return sign
    braced = cursor.accept("{")
    if relation := cursor.accept("<", ">", "\\le", "\\ge", "\\ne"):
        if cursor.rules.additive(cursor) != number_node(0):
            raise Unreadable("a set of numbers has a bound other than 0")
        mark = {"<": "-", ">": "+", "\\le": "-0", "\\ge": "+0", "\\ne": "*"}[relation]
    elif cursor.accept("*", "\\cdot", "\\times"):
        mark = "*"
    else:
        value = integer_value(cursor.rules.additive(cursor) if braced else operand(cursor))
        mark = f"^{value}" if script == "^" else str(value)
    if braced:
        cursor.expect("}")
    return mark


def environment(cursor: Cursor, braced: bool = False) -> Node:
    """A matrix, array or distinction of cases, after ``\\begin``; ``braced``: an array of cases after a brace."""
    kind = _environment_name(cursor)
    if kind == "cases" or braced:
        _separate_conditions(cursor)
    if kind == "array" and cursor.next.value == "{":
        while cursor.take().value != "}":
            if cursor.next is END:
                raise Unreadable("an array has no end")
    if not kind.endswith("matrix") and kind not in ("array", "cases", "aligned"):
        raise Unreadable(f"the environment {kind!r} is not in the grammar")
    rows = _rows(cursor)
    if _environment_name(cursor) != kind:
        raise Unreadable("environments are nested wrongly")
    columns = len(rows[0])
    if any(len(row) != columns for row in rows):
        raise Unreadable("the rows of a matrix differ in length")
    if kind in ("cases", "aligned") or braced:
        return _cases(rows)
    matrix = Node("matrix", tuple(entry for row in rows for entry in row), columns)
    return Node("function", (matrix,), "det") if kind == "vmatrix" else matrix


def _separate_conditions(cursor: Cursor) -> None:
    """Write ``&`` for the words and commas before the conditions of a distinction of cases."""
    end = next((i for i, t in enumerate(cursor.tokens) if i >= cursor.position and t.value == "\\end"), None)
    separated: list[Token] = []
    for token in cursor.tokens[cursor.position : end]:
        condition = token.value == "&" or (token.kind == "text" and token.value.lower().strip(", ") in _CONDITIONS)
        if condition or token.value == "\\\\":
            while separated and separated[-1].value in (",", ".", ";", *("&" if condition else "")):
                separated.pop()
        separated.append(Token("mark", "&") if condition else token)
    while separated and separated[-1].value in (",", ".", ";"):
        separated.pop()
    cursor.tokens[cursor.position : end] = separated


def _cases(rows: list[list[Node]]) -> Node:
    """Values with their conditions, or a system of equations."""
    if all(len(row) == 1 and row[0].head == "relation" for row in rows):
        return Node("list", tuple(row[0] for row in rows), "and")
    if any(len(row) != 2 for row in rows):
        raise Unreadable("a case has no condition")
    return Node("cases", tuple(Node("case", tuple(row)) for row in rows))


def _environment_name(cursor: Cursor) -> str:
    cursor.expect("{")
    letters = []
    while not cursor.accept("}"):
        token = cursor.take()
        if token is END:
            raise Unreadable("an environment has no name")
        letters.append(token.value)
    return "".join(letters)


def _rows(cursor: Cursor) -> list[list[Node]]:
    rows, entries, bars, cursor.bars = [[]], 0, cursor.bars, 0
    while not cursor.accept("\\end"):
        if cursor.accept("\\\\"):
            rows.append([])
        elif not cursor.accept("&", "\\hline"):
            rows[-1].append(cursor.rules.item(cursor))
            entries += 1
        if entries > MATRIX_ENTRIES:
            raise Refused(f"a matrix has more than {MATRIX_ENTRIES} entries")
        if cursor.next is END:
            raise Unreadable("a matrix has no end")
    cursor.bars = bars
    rows = [row for row in rows if row]
    if not rows:
        raise Unreadable("a matrix is empty")
    return rows
