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

_UNTOUCHED = re.compile(
    r"""
    ^(?P<fence>```+|~~~+)[^\n]*\n .*? (?:^(?P=fence)[^\n]*$ | \Z)   # a code block
    | (?P<ticks>(?<!`)`+(?!`)) .+? (?<!`)(?P=ticks)(?!`)            # a code span
    | \S*[\d/\\_]\S*                                                # a path, a URL, a number, an identifier
    | \S*\w\.\w\S*                                                  # a file name, a host, a version
    | \S*\*\.\w\S*                                                  # a pattern of file names
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)

_DECORATION = [
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"^[ \t]*(?:[-*=][ \t]*){3,}$", re.MULTILINE), ""),  # rules and underlines
    (re.compile(r"^[ \t]*\|?(?:[ \t]*:?-{2,}:?[ \t]*\|)+[ \t]*(?::?-{2,}:?)?[ \t]*$", re.MULTILINE), ""),
    (re.compile(r"^[ \t]*#{1,6}[ \t]+(.*?)[ \t]*#*$", re.MULTILINE), r"\1"),  # headings
    (re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE), ""),  # quotations
    (re.compile(r"(?<![\w*])\*{1,3}(?=[^\s*])"), ""),  # emphasis, where it begins
    (re.compile(r"(?<=[^\s*])\*{1,3}(?![\w*])"), ""),  # and ends
]

_SPACE = [
    (re.compile(r"[ \t\u00a0]+"), " "),
    (re.compile(r" ?\n ?(?:\n ?)+"), "\n"),
    (re.compile(r" (?=\n)"), ""),
]

_WORDS = re.compile(
    r"(?<![\w'’-])(?:"
    + "|".join(sorted(map(re.escape, ABBREVIATIONS), key=len, reverse=True))
    + r")(?![\w'’-])",
    re.IGNORECASE,
)


def compress(text: str) -> str:
    """Give the text with fewer characters and the same facts; never longer, and stable when repeated."""
    while True:
        shorter = _once(text).strip()
        # Every pass shortens or ends: what one pass lays bare (a quotation in a quotation) is for the next.
        if len(shorter) >= len(text):
            return text
        text = shorter


def _once(text: str) -> str:
    parts, end = [], 0
    for untouched in _UNTOUCHED.finditer(text):
        parts += [_shorten(text[end : untouched.start()]), untouched[0]]
        end = untouched.end()
    return "".join([*parts, _shorten(text[end:])])


def _shorten(text: str) -> str:
    for pattern, replacement in (*_DECORATION, *_SPACE):
        text = pattern.sub(replacement, text)
    return _WORDS.sub(_abbreviated, text)


def _abbreviated(match: re.Match[str]) -> str:
    word = match[0]
    short = ABBREVIATIONS[word.lower()]
    if word.isupper():
        return short.upper()
    return short[0].upper() + short[1:] if word[0].isupper() else short
