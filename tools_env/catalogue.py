"""The tools by name: what a model is told of each. How they run is the environment's business."""

from __future__ import annotations

from tools_env.spec import ToolSpec


def _tool(
    name: str,
    description: str,
    required: dict[str, str],
    optional: dict[str, tuple[str, str]],
    *,
    has_effects: bool = True,
) -> ToolSpec:
    properties = {key: {"type": "string", "description": text} for key, text in required.items()}
    properties |= {key: {"type": kind, "description": text} for key, (kind, text) in optional.items()}
    return ToolSpec(
        name,
        description,
        {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False},
        has_effects,
    )


_PATH = "Path relative to /workspace."

SUBMIT = _tool(
    "submit", "Submit the final answer and end the task.", {"answer": "The final answer."}, {}, has_effects=False
)

CATALOGUE: dict[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        _tool(
            "bash",
            "Run a bash command in /workspace. No network. Each call is a new shell; only /workspace is kept.",
            {"command": "The command line or script."},
            {},
        ),
        _tool(
            "python",
            "Run Python 3 code (standard library only) in /workspace. Print what you want to see.",
            {"code": "The Python source to run."},
            {},
        ),
        _tool(
            "read_file",
            "Read a text file, or the given lines of it.",
            {"path": _PATH},
            {
                "start_line": ("integer", "First line to read, counted from 1."),
                "end_line": ("integer", "Last line to read, inclusive."),
            },
            has_effects=False,
        ),
        _tool(
            "write_file",
            "Create or overwrite a text file. Missing directories are created.",
            {"path": _PATH, "content": "The whole new content."},
            {},
        ),
        _tool(
            "edit_file",
            "Replace one piece of text in a file. `old` must occur exactly once: include enough lines around it.",
            {"path": _PATH, "old": "The exact text to replace.", "new": "The text to put in its place."},
            {},
        ),
        _tool(
            "list_files",
            "List the files below a directory, recursively and sorted. Directories end in '/'.",
            {},
            {"path": ("string", "Directory relative to /workspace; the whole workspace if left out.")},
            has_effects=False,
        ),
        _tool(
            "search_files",
            "Search files for a regular expression (Python syntax). Hits read 'path:line: text'.",
            {"pattern": "The regular expression, matched within single lines."},
            {"path": ("string", "File or directory relative to /workspace; the whole workspace if left out.")},
            has_effects=False,
        ),
        SUBMIT,
    )
}
