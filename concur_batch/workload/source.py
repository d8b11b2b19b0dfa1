"""The workload file as plain values, and where each of them was written.

YAML is read by the core schema of YAML 1.2: only `true` and `false` are truth values, `1e-3` is a number, dates and
`12:30` are text. Keys are text, and a key may stand only once in a block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from concur_batch.workload.errors import InputError, Problem, shown

KeyPath = tuple[str | int, ...]

# Aliases may repeat a block within itself many times over; a workload has a few hundred values.
MAX_VALUES = 10_000

_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "null", "bool", "int", "float", "str")}


class _CoreLoader(yaml.SafeLoader):
    """PyYAML reads YAML 1.1, where `on` is true and `1e-3` text; below are the resolvers of 1.2, section 10.3.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_CoreLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""])
_CoreLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_CoreLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_CoreLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a file and its line, or a `--set` argument."""

    file: str
    line: int | None


@dataclass(slots=True)
class Source:
    """Plain values (dict, list, str, int, float, bool, None), and the origin of each by key path; `()` is the whole."""

    file: str
    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)

    def problem(self, path: KeyPath, reason: str, mend: str, key: str | None = None) -> Problem:
        """A problem of the value at `path`, located there or, where it was never written, at the block around it."""
        at = path
        while at not in self.origins and at:
            at = at[:-1]
        origin = self.origins.get(at, Origin(self.file, None))
        return Problem(origin.file, origin.line, dotted(path) if key is None else key, reason, mend)

    def forget(self, path: KeyPath) -> None:
        """Drop the origins of `path` and of everything under it."""
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]


def dotted(path: KeyPath) -> str:
    """`("verify", 0, "kind")` as `verify.0.kind`."""
    return ".".join(str(part) for part in path)


def read_yaml(text: str, file: str) -> Source:
    """Parse a workload file. Raises InputError with every duplicate key, or with the first syntax error."""
    source = Source(file, {}, {(): Origin(file, 1)})
    problems: list[Problem] = []
    try:
        node = _compose(text)
        value = None if node is None else _Builder(source, problems).build(node, (), frozenset())
    except yaml.MarkedYAMLError as error:
        raise InputError([_syntax_problem(file, error)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = chr(error.character) if isinstance(error.character, int) else error.character
        reason = f"holds the character {character!r}, which YAML does not allow"
        raise InputError([Problem(file, line, "", reason, "delete it")]) from None
    if problems:
        raise InputError(problems)
    if value is None:
        raise InputError(
            [Problem(file, None, "", "the file is empty", "write a workload into it; see docs/workload.md")]
        )
    if not isinstance(value, dict):
        reason = f"holds {'a list' if isinstance(value, list) else 'one value'}, not a block of keys"
        raise InputError([Problem(file, 1, "", reason, "start with `name:`, `tasks:`, `model:` and `engine:`")])
    source.value = value
    return source


def read_yaml_value(text: str, file: str) -> Any:
    """Any YAML value. Raises InputError, naming `file`, without lines."""
    problems: list[Problem] = []
    try:
        node = _compose(text)
        value = None if node is None else _Builder(Source(file), problems).build(node, (), frozenset())
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or "holds a character which YAML does not allow"
        raise InputError(
            [Problem(file, None, "", f"the value is not YAML: {reason}", "quote it for YAML and for the shell")]
        ) from None
    if problems:
        raise InputError(problems)
    return value


def _compose(text: str) -> yaml.Node | None:
    loader = _CoreLoader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="blocks are nested too deeply", problem_mark=loader.get_mark()) from None
    finally:
        loader.dispose()
    return node


def _syntax_problem(file: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    reason = error.problem or error.context or "is not YAML"
    if "\\t" in reason:
        mend = "indent with spaces"
    elif "mapping values" in reason:
        mend = "put a text which holds `: ` in quotes, or mend the indentation"
    elif "undefined alias" in reason:
        mend = "put a text which starts with `*` in quotes"
    else:
        mend = "mend the YAML there, or put the text in quotes"
    if mark is None:
        return Problem(file, None, "", reason, mend)
    return Problem(file, mark.line + 1, f"column {mark.column + 1}", reason, mend)


class _Builder:
    """Turns YAML nodes into plain values, noting the line of each key and every duplicate."""

    def __init__(self, source: Source, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        self.values = 0

    def build(self, node: yaml.Node, path: KeyPath, ancestors: frozenset[int]) -> Any:
        self.values += 1
        if id(node) in ancestors:
            raise _fault(node, "an alias stands within what it names")
        if self.values > MAX_VALUES:
            raise _fault(node, f"there are more than {MAX_VALUES} values, each alias counted as what it names")
        if node.tag not in _TAGS:
            raise _fault(node, f"the tag {node.tag} means nothing here")
        within = ancestors | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, within)
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._note((*path, number), item)
            return [self.build(item, (*path, number), within) for number, item in enumerate(node.value)]
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, within: frozenset[int]) -> dict[str, Any]:
        block: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _fault(key_node, "a block or a list stands as a key")
            name = _text(key_node)
            key = (*path, name)
            if name in block:
                line, first = key_node.start_mark.line + 1, self.source.origins[key].line
                reason = f"stands a second time, after line {first}"
                self.problems.append(Problem(self.source.file, line, dotted(key), reason, "keep one"))
                continue
            self._note(key, key_node)
            block[name] = self.build(value_node, key, within)
        return block

    def _note(self, path: KeyPath, node: yaml.Node) -> None:
        self.source.origins[path] = Origin(self.source.file, node.start_mark.line + 1)


def _scalar(node: yaml.Node) -> Any:
    """A scalar's value by its tag."""
    text, kind = _text(node), node.tag.rpartition(":")[2]
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case _:
                return text
    except ValueError:  # `!!int many`, or more digits than Python converts
        raise _fault(node, f"{shown(text)} is no {kind}, or has too many digits") from None


def _text(node: yaml.Node) -> str:
    """A scalar as it is written. An escape such as `\\ud800` would make text that no file and no engine takes."""
    text = str(node.value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _fault(node, "the text holds half a surrogate pair")
    return text


def _fault(node: yaml.Node, reason: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=reason, problem_mark=node.start_mark)
