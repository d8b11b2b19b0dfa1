"""Whose KV a node is: SGLang 0.5.23's session tags (`--enable-session-radix-cache`), by which nodes that belong to no
open session are evicted before all others.

A request that has finished marks the node where its KV ends, and its session is counted there and at every node above.
Closing a session takes its marks away, and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from concur_batch.simulator.node import Node


class Session:
    """One life of a session's name, from its first request until it is closed; a later request begins another.

    `ends` are the nodes that it marks. As a history grows, its mark moves down; a session has several where its
    histories part, or where a shorter one finished after a longer one, which counts the common path twice.
    """

    __slots__ = ("closed", "ends")

    def __init__(self) -> None:
        self.closed = False
        self.ends: dict[Node, None] = {}

    def mark(self, node: Node) -> None:
        self.ends[node] = None
        if node.sessions is None:
            node.sessions = {}
        node.sessions[self] = None

    def unmark(self, node: Node) -> None:
        assert node.sessions is not None
        del self.ends[node]
        del node.sessions[self]


class Sessions:
    """The open sessions of a tree. `fell` is called for each node whose `references` have become fewer."""

    def __init__(self, fell: Callable[[Node], None]) -> None:
        self._fell = fell
        self._open: dict[str, Session] = {}

    def open(self, name: str) -> Session:
        """The one of that name, for a request that arrives."""
        return self._open.setdefault(name, Session())

    def finished(self, session: Session, node: Node) -> None:
        """A request has finished, and its KV ends with `node`: nothing, where its session was closed meanwhile."""
        if session.closed or node.parent is None or node in session.ends:
            return
        step = node
        while step.parent is not None and step not in session.ends:
            step.references += 1
            step = step.parent
        if step.parent is not None:
            session.unmark(step)
        session.mark(node)

    def close(self, name: str) -> None:
        """No request of this name has its session any more; an unknown one is closed already."""
        session = self._open.pop(name, None)
        if session is None:
            return
        session.closed = True
        for node in list(session.ends):
            session.unmark(node)
            self._dereference(node)

    def leaves(self, node: Node) -> None:
        """`node`, a leaf, is about to leave the tree: its marks go to its parent, but for those that it has already."""
        parent = node.parent
        assert parent is not None
        for session in list(node.sessions or ()):
            session.unmark(node)
            if parent in session.ends:
                self._dereference(parent)
            elif parent.parent is not None:
                session.mark(parent)

    def clear(self) -> None:
        """The tree has been emptied."""
        self._open.clear()

    def _dereference(self, node: Node) -> None:
        """Count one mark less, from `node` up."""
        step = node
        while step.parent is not None:
            step.references -= 1
            self._fell(step)
            step = step.parent
