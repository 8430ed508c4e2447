"""A router's memory of which prompts went where: a tree over segments, one branch per prefix.

Each node is one segment below the ones that came before it. It knows the replicas that were sent a
prompt through it (its holders), and which of them was the first (its owner). A replica's size is
the sum of the tokens of the nodes that it holds. Eviction takes leaves, a leaf being a node below
which the replica holds nothing, in the order in which prompts last ended there.

    match(prompt)    walks down while there is a node for the next segment, whoever holds it
    insert(prompt)   makes the replica a holder of every node on the way

The trees of the SGLang family do this over characters, with edges of many characters; segments are
equal or different as a whole, so a match here ends where a segment does.

Edges: nothing known, or a first segment not known: the root, with 0 tokens and no holder; an owner
that no longer holds its node is followed by the longest holder; a replica that is forgotten leaves
no empty node.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from ullage_tune.workload import Segment


class Node:
    """A prefix, named by its last segment."""

    __slots__ = ("children", "holders", "owner", "parent", "segment")

    def __init__(self, segment: Segment, parent: "Node | None") -> None:
        self.segment = segment
        self.parent = parent
        self.children: dict[Segment, Node] = {}
        self.holders: dict[int, int] = {}
        """Replica: when a prompt last ended here; 0: none has, they went on from here."""
        self.owner: int | None = None

    def leaf_of(self, replica: int) -> bool:
        """Whether the replica holds nothing below."""
        return not any(replica in child.holders for child in self.children.values())

    def first_holder(self) -> int | None:
        """The owner, or who has come after it."""
        if self.owner not in self.holders:
            self.owner = next(iter(self.holders), None)
        return self.owner


class PrefixTree:
    """The tree, and its size in tokens for each replica."""

    def __init__(self) -> None:
        self.root = Node(Segment(0, 0), None)
        self.sizes: dict[int, int] = {}
        self.size = 0
        """Of all replicas together."""
        self._ended = 0

    def walk(self, prompt: Iterable[Segment]) -> Iterator[Node]:
        """The nodes on the way down, without the root."""
        node = self.root
        for segment in prompt:
            below = node.children.get(segment)
            if below is None:
                return
            node = below
            yield node

    def match(self, prompt: Iterable[Segment]) -> tuple[int, Node]:
        """Tokens of the longest prefix that is known, and its node."""
        tokens, node = 0, self.root
        for below in self.walk(prompt):
            tokens, node = tokens + below.segment.tokens, below
        return tokens, node

    def insert(self, prompt: Iterable[Segment], replica: int) -> None:
        """The replica has been sent this prompt."""
        node = self.root
        for segment in prompt:
            below = node.children.get(segment)
            if below is None:
                below = node.children[segment] = Node(segment, node)
                below.owner = replica
            if replica not in below.holders:
                below.holders[replica] = 0
                self._grow(replica, segment.tokens)
            node = below
        if node is not self.root:
            self._ended += 1
            node.holders[replica] = self._ended

    def evict(self, over: Callable[[int], bool]) -> None:
        """Takes the oldest leaves of each replica for as long as it is `over` its bound."""
        if not any(over(replica) for replica in self.sizes):
            return
        leaves = [
            (ended, order, replica, node)
            for order, node in enumerate(self._nodes())
            for replica, ended in node.holders.items()
            if node.leaf_of(replica)
        ]
        heapify(leaves)
        while leaves:
            _, order, replica, node = heappop(leaves)
            if not over(replica):
                continue
            above = node.parent
            self._drop(node, replica)
            if above is not None and replica in above.holders and above.leaf_of(replica):
                heappush(leaves, (above.holders[replica], order, replica, above))

    def forget(self, replica: int) -> None:
        """The replica holds nothing any more."""
        for node in reversed([node for node in self._nodes() if replica in node.holders]):
            self._drop(node, replica)
        self.sizes.pop(replica, None)

    def _nodes(self) -> Iterator[Node]:
        """All but the root, each before those below it."""
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children.values())

    def _drop(self, node: Node, replica: int) -> None:
        del node.holders[replica]
        self._grow(replica, -node.segment.tokens)
        if not node.holders and node.parent is not None:
            del node.parent.children[node.segment]

    def _grow(self, replica: int, tokens: int) -> None:
        self.size += tokens
        self.sizes[replica] = self.sizes.get(replica, 0) + tokens
