"""A stock compressor for memories: fewer characters, the same facts.

It is a callable from text to text, for ``HydrationPolicy(compressor=compress)``, and is applied to
one memory at a time. It folds white space, drops Markdown that only decorates, and shortens the
words of :data:`ABBREVIATIONS`. Case is kept, compressing twice is compressing once, and these are
never touched: code blocks and code spans, URLs, and every word that holds a digit, a slash, a
backslash, an underscore or a dot inside (paths, file names, versions, identifiers, numbers).
"""

from __future__ import annotations

import re

ABBREVIATIONS = {
    "application": "app",
    "applications": "apps",
    "approximately": "approx.",
    "authentication": "auth",
    "configuration": "config",
    "configurations": "configs",
    "database": "DB",
    "databases": "DBs",
    "development": "dev",
    "directories": "dirs",
    "directory": "dir",
    "documentation": "docs",
    "environment": "env",
    "environments": "envs",
    "for example": "e.g.",
    "information": "info",
    "maximum": "max",
    "minimum": "min",
    "parameter": "param",
    "parameters": "params",
    "production": "prod",
    "repositories": "repos",
    "repository": "repo",
    "specification": "spec",
    "specifications": "specs",
    "that is to say": "i.e.",
    "versus": "vs.",
}
"""Words and what stands for them; a capital at the start, or throughout, is kept."""

# Stands for a piece that is not touched, so that patterns see where lines truly begin and end.
_KEPT = "\ue000"

_UNTOUCHED = re.compile(
    rf"""
    (?P<comment><!--.{{0,1000}}?-->)                                # not kept; but not looked for in code
    | ^(?P<fence>```+|~~~+)[^\n]*\n .*? (?:^(?P=fence)[^\n]*$ | \Z) # a code block
    | (?P<ticks>(?<!`)`+(?!`)) .+? (?<!`)(?P=ticks)(?!`)            # a code span
    # A path, a URL, a number, an identifier; a file name, a host, a version; a pattern of file names.
    # Looked for where a word begins only: long words would otherwise take quadratic time.
    | (?<![^\s`]) [^\s`]* (?: [\d/\\_] | \w\.\w | \*\.\w ) [^\s`]*
    | {_KEPT}
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)

_SPACE = re.compile(r"[ \t\u00a0]+")

# Quotation marks and the marks of a heading, as many as there are, and the rest of the line.
_OPENING = re.compile(r"^ ?((?:(?:>|#{1,6}(?= )) ?)+)(.*)$", re.MULTILINE)

_DECORATION = [
    (re.compile(r"^ ?(?:[-*=] ?){3,}$", re.MULTILINE), ""),  # rules and underlines
    (re.compile(r"^ ?\|?(?: ?:?-{2,}:? ?\|)+ ?(?::?-{2,}:?)? ?$", re.MULTILINE), ""),  # those of tables
    (re.compile(rf"(?<![\w*{_KEPT}])\*{{1,3}}(?=[^\s*])"), ""),  # emphasis, where it begins
    (re.compile(rf"(?<=[^\s*])\*{{1,3}}(?![\w*{_KEPT}])"), ""),  # and ends
    (re.compile(r" ?\n ?(?:\n ?)+"), "\n"),
    (re.compile(r" (?=\n)"), ""),
]

_WORDS = re.compile(
    r"(?<![\w'’-])(?:"
    + "|".join(sorted(map(re.escape, ABBREVIATIONS), key=len, reverse=True))
    + r")(?![\w'’-])",
    re.IGNORECASE,
)


# What one pass lays bare (a rule in a quotation) is for the next; ordinary text takes two or three.
_PASSES = 10


def compress(text: str) -> str:
    """Give the text with fewer characters and the same facts; never longer, and stable when repeated."""
    shortest = text
    for _ in range(_PASSES):
        shorter = _once(shortest).strip()
        if len(shorter) >= len(shortest):
            return shortest
        shortest = shorter
    # No end in sight: made to be nested without end. It stays as it is, whenever it is compressed.
    return text


def _once(text: str) -> str:
    pieces: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return ""
        pieces.append(match[0])
        return _KEPT

    text = _OPENING.sub(_without_opening, _SPACE.sub(" ", _UNTOUCHED.sub(keep, text)))
    for pattern, replacement in _DECORATION:
        text = pattern.sub(replacement, text)
    untouched = iter(pieces)
    return re.sub(_KEPT, lambda _: next(untouched), _WORDS.sub(_abbreviated, text))


def _without_opening(match: re.Match[str]) -> str:
    marks, rest = match.groups()
    return re.sub(r" #+$", "", rest) if "#" in marks else rest


def _abbreviated(match: re.Match[str]) -> str:
    word = match[0]
    short = ABBREVIATIONS[word.lower()]
    if word.isupper():
        return short.upper()
    return short[0].upper() + short[1:] if word[0].isupper() else short
