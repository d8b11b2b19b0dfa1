"""The first user message: a Jinja2 template over the columns of a task's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

_ENVIRONMENT = SandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)


class RenderError(Exception):
    """The template does not fit a row; the text says why."""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A compiled template. One line break at its very end is dropped, as YAML's `|` puts one there."""

    template: jinja2.Template

    @classmethod
    def compile(cls, text: str) -> PromptTemplate:
        """Raises jinja2.TemplateSyntaxError, whose `lineno` counts the template's own lines."""
        return cls(_ENVIRONMENT.from_string(text))

    def render(self, columns: Mapping[str, Any]) -> str:
        """The prompt of one row, whose columns are the variables; `row` is the whole row, for names with spaces.

        Raises RenderError: an undefined column, a forbidden or failing expression.
        """
        try:
            return self.template.render({"row": columns, **columns})
        except jinja2.UndefinedError as error:
            raise RenderError(error.message or "is undefined") from None
        except Exception as error:  # a template may fail in any way its expressions can
            raise RenderError(f"{type(error).__name__}: {error}") from None
