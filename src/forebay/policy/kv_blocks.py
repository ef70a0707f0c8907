"""What one engine says of its KV blocks (vLLM's and SGLang's KV events), told in blocks of ours. Pure.

Theory of operation. An engine names its blocks by hashes of token ids; the gateway has bytes, and no tokenizer on the
way of a request. So the two are brought together by what both know of the same request:

- The engine's blocks form a tree: each is stored under its parent. `KvBlocks` keeps that tree as runs of hashes.
- A request was sent with a chain of ours (one number a piece of its prompt's bytes). When it ends, its `usage` says
  how many tokens P the prompt had, so its prompt fills D = P // block_size blocks of the engine, and its chain lies
  along the way from the root to a block of depth D. Which block that is, is learned in one of two ways:
    exact    the event names the request (vLLM 0.32: `session_id`, which the gateway sends as a header);
    by time  of the runs that reached depth D exactly between sending and first token (if none did, a little later),
             and that, where usage has `cached_tokens`, were begun at the depth that was cached, there is only one. More
             than one: not linked. A run that two different prompts claim is linked to neither.
- A removed block of depth d leaves d − 1 blocks of its way: (d − 1) · block_size tokens, or in bytes that times the
  prompt's bytes per token. What lies beyond is gone: `PrefixIndex.lost`. Engines evict the ends of chains first.

Estimated is the place of a token among the bytes (proportional); known are the ends. An error moves the cut by some
pieces and costs a prefix hit, or some prefill that was not expected: never an answer.

Events are late by some milliseconds and a request's end can be earlier: linking waits for `lag_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

LAG_S: Final = 0.25
"""Seconds that an event may be later than the first token of the request that caused it."""
MOST_BLOCKS: Final = 1 << 18
"""Blocks of one engine kept; beyond, its oldest go unobserved. About 80 bytes each."""
_MOST_REQUESTS: Final = 8_192
_MOST_STORES: Final = 8_192
_LINKS_A_RUN: Final = 64


class Index(Protocol):
    """Who is told: `policy.prefix.PrefixIndex`."""

    def lost(self, name: str, numbers: Sequence[int], keep: int) -> None:
        """The blocks of this chain from number `keep` on are gone on that engine."""
        ...

    def forget(self, name: str) -> None:
        """That engine holds nothing any more."""
        ...


class _Run:
    """Blocks one after the other. `base`: how many lie before its first, which hangs under a block of `parent`."""

    __slots__ = ("base", "children", "hashes", "links", "parent")

    def __init__(self, parent: _Run | None, base: int, hashes: list[int]) -> None:
        self.parent = parent
        self.base = base
        self.hashes = hashes
        self.children: dict[_Run, None] = {}
        self.links: dict[int, _Link] = {}  # by the last number kept of the chain

    @property
    def end(self) -> int:
        """The depth of its last block."""
        return self.base + len(self.hashes)


class _Link:
    """A chain of ours along the way to the block at `depth`; of it the first `kept` numbers are there."""

    __slots__ = ("chain", "depth", "kept", "pieces_a_block")

    def __init__(self, chain: Sequence[int], depth: int, pieces_a_block: float) -> None:
        self.chain = chain
        self.depth = depth
        self.kept = len(chain)
        self.pieces_a_block = pieces_a_block


class _Store:
    """One event: blocks of depths `start` + 1 to `end` came to be."""

    __slots__ = ("at", "before", "claimed", "end", "hash", "single", "start")

    def __init__(self, at: float, start: int, end: int, last: int, before: _Store | None) -> None:
        self.at = at
        self.start = start
        self.end = end
        self.hash = last
        self.single = end == start + 1
        self.before = before  # the event that stored its parent last, while that is remembered
        self.claimed: Sequence[int] | None = None


class _Request:
    __slots__ = ("cached", "candidates", "chain", "first_at", "own", "sent_at", "size", "tokens")

    def __init__(self, chain: Sequence[int], size: int, now: float) -> None:
        self.chain = chain
        self.size = size  # bytes
        self.sent_at = now
        self.first_at: float | None = None
        self.own: int | None = None  # the last block that the engine says this request stored
        self.candidates: list[_Store] | None = None  # once its lag is over
        self.tokens = 0  # of its prompt, once it has ended
        self.cached: int | None = None


class KvBlocks:
    """One engine. Mutable state: the tree of its blocks with the chains linked to it, the requests not linked yet, and
    the last events that stored something. All are bounded. Times are monotonic seconds.

    `piece_bytes`: bytes of the prompt that one number of a chain stands for.
    """

    def __init__(
        self, engine: str, index: Index, *, piece_bytes: int, most_blocks: int = MOST_BLOCKS, lag_s: float = LAG_S
    ) -> None:
        if piece_bytes < 1 or most_blocks < 1:
            raise ValueError(f"pieces and blocks are at least 1: {piece_bytes}, {most_blocks}")
        self.engine = engine
        self.stores = 0
        """Blocks that the engine said it stored, ever."""
        self.linked = 0
        """Requests whose way through the tree was found, ever."""
        self.unlinked = 0
        """Requests of which it was not."""
        self.strays = 0
        """Blocks stored under a parent nobody knows, or of another size."""
        self._index = index
        self._piece = piece_bytes
        self._most = most_blocks
        self._lag = lag_s
        self._block_size = 0  # tokens
        self._where: dict[int, _Run] = {}
        self._copies: dict[int, int] = {}  # further blocks of the same hash
        self._roots: dict[_Run, None] = {}
        self._requests: dict[Hashable, _Request] = {}
        self._lagging: deque[tuple[float, Hashable, _Request]] = deque()
        self._stores: deque[_Store] = deque()
        self._ends: dict[int, _Store] = {}

    # --- requests -----------------------------------------------------------------------------------------------------

    def sent(self, key: Hashable, chain: Sequence[int], size: int, now: float) -> None:
        """A request goes to this engine: the chain of its prompt, and the prompt's bytes. `chain` is kept, not copied.
        Two under one key at once are told apart by nothing, and neither is linked."""
        if self._requests.pop(key, None) is not None or not chain or size <= 0:
            return
        if len(self._requests) >= _MOST_REQUESTS:
            del self._requests[next(iter(self._requests))]
        self._requests[key] = _Request(chain, size, now)

    def first_token(self, key: Hashable, now: float) -> None:
        request = self._requests.get(key)
        if request is not None and request.first_at is None:
            request.first_at = now
            self._lagging.append((now + self._lag, key, request))

    def ended(self, key: Hashable, tokens: int | None, cached: int | None, now: float) -> None:
        """`tokens` of its prompt, `cached` of them found in the cache, as its usage says; None: not said. One that is
        not known, and one whose tokens are not, is left alone."""
        request = self._requests.get(key)
        if request is None:
            return
        if not tokens:
            del self._requests[key]
            return
        request.tokens, request.cached = tokens, cached
        if request.first_at is None:
            self.first_token(key, now)
        elif request.candidates is not None:
            self._link(key, request)
        self._settle(now)

    # --- events -------------------------------------------------------------------------------------------------------

    def stored(
        self, hashes: Sequence[int], parent: int | None, block_size: int, now: float, owner: Hashable = None
    ) -> None:
        """The engine holds these blocks, one after the other, the first under `parent` (None: under the root).
        `owner`: the key of the request that caused it, where the engine says so."""
        self._settle(now)
        self.stores += len(hashes)
        if not hashes:
            return
        if not self._where:
            self._block_size = block_size
        run = None if parent is None else self._where.get(parent)
        if block_size != self._block_size or (parent is not None and run is None):
            self.strays += len(hashes)
            return
        depth = 0 if run is None or parent is None else self._depth(run, parent)
        if not self._add(run, depth, list(hashes)):
            self.strays += len(hashes)
            return
        last = hashes[-1]
        request = self._requests.get(owner) if owner is not None else None
        if request is not None:
            request.own = last
        else:
            before = self._ends.get(parent) if parent is not None else None
            self._remember(_Store(now, depth, depth + len(hashes), last, before))
        while len(self._where) > self._most:
            self._drop(next(iter(self._roots)))

    def removed(self, hashes: Sequence[int], now: float) -> None:
        """The engine gave these blocks up."""
        self._settle(now)
        where, copies = self._where, self._copies
        for block in hashes:
            if copies and (more := copies.get(block)):
                if more > 1:
                    copies[block] = more - 1
                else:
                    del copies[block]
            elif (run := where.get(block)) is not None:
                self._cut(run, self._depth(run, block) - 1)

    def cleared(self) -> None:
        """The engine holds nothing: it said so, or it is a new process."""
        self.unknown()
        self._index.forget(self.engine)

    def unknown(self) -> None:
        """Events were missed: what is known of its blocks may be wrong, so it is forgotten. What the index believes
        stands."""
        self._where.clear()
        self._copies.clear()
        self._roots.clear()
        self._stores.clear()
        self._ends.clear()
        self._lagging.clear()
        self._requests.clear()

    # --- the tree -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _depth(run: _Run, block: int) -> int:
        """Of a block in this run."""
        hashes = run.hashes
        return run.end if hashes[-1] == block else run.base + hashes.index(block) + 1

    def _add(self, run: _Run | None, depth: int, hashes: list[int]) -> bool:
        """Hang `hashes` under the block of `run` at `depth`. False where they contradict what is there."""
        where = self._where
        known = 0
        if len(hashes) > 1 and len(set(hashes)) != len(hashes):
            return False
        if not where.keys().isdisjoint(hashes):
            # Two requests computed the same blocks at once: an engine keeps, and removes, both.
            for block in hashes:
                there = where.get(block)
                if there is None:
                    break
                if self._depth(there, block) != depth + 1:
                    return False
                run, depth, known = there, depth + 1, known + 1
            if not where.keys().isdisjoint(hashes[known:]):
                return False
            for block in hashes[:known]:
                self._copies[block] = self._copies.get(block, 0) + 1
            del hashes[:known]
            if not hashes:
                return True
        if run is not None and depth == run.end and not any(c.base == depth for c in run.children):
            run.hashes += hashes
        else:
            parent, run = run, _Run(run, depth, hashes)
            if parent is None:
                self._roots[run] = None
            else:
                parent.children[run] = None
        for block in hashes:
            where[block] = run
        return True

    def _cut(self, run: _Run, depth: int) -> None:
        """What lies in and under `run` beyond `depth` is gone, or cannot be reached."""
        at = depth - run.base
        gone = run.hashes[at:]
        del run.hashes[at:]
        for block in gone:
            del self._where[block]
            if self._copies:
                self._copies.pop(block, None)
        links: list[_Link] = []
        if run.links:
            links = [link for link in run.links.values() if link.depth > depth]
            for link in links:
                del run.links[link.chain[link.kept - 1]]
        if run.children:
            for child in [c for c in run.children if c.base > depth]:
                del run.children[child]
                self._take(child, links)
        keeper: _Run | None = run
        if not run.hashes:
            self._unhang(run)
            keeper = run.parent
        for link in links:
            self._shorten(link, depth, keeper)

    def _take(self, top: _Run, links: list[_Link]) -> None:
        """Forget a run and all under it; its links are added to `links`."""
        runs = [top]
        while runs:
            run = runs.pop()
            runs += run.children
            links += run.links.values()
            for block in run.hashes:
                del self._where[block]
                self._copies.pop(block, None)

    def _unhang(self, run: _Run) -> None:
        if run.parent is None:
            del self._roots[run]
        else:
            run.parent.children.pop(run, None)

    def _drop(self, root: _Run) -> None:
        """Observe it no more, without a word to the index."""
        self._take(root, [])
        del self._roots[root]

    def _shorten(self, link: _Link, depth: int, keeper: _Run | None) -> None:
        """`depth` blocks of its way are left, the last of them in `keeper`."""
        keep = min(link.kept, int(depth * link.pieces_a_block))
        if keep < link.kept:
            link.kept = keep
            self._index.lost(self.engine, link.chain, keep)
        link.depth = depth
        if keep and keeper is not None:
            self._hang(link, keeper)

    @staticmethod
    def _hang(link: _Link, run: _Run) -> None:
        """Chains that are the same as far as they are kept are one."""
        links = run.links
        key = link.chain[link.kept - 1]
        if key not in links and len(links) >= _LINKS_A_RUN:
            del links[next(iter(links))]
        links[key] = link

    # --- linking ------------------------------------------------------------------------------------------------------

    def _remember(self, store: _Store) -> None:
        stores, ends = self._stores, self._ends
        if len(stores) >= _MOST_STORES:
            old = stores.popleft()
            old.before = None
            if ends.get(old.hash) is old:
                del ends[old.hash]
        stores.append(store)
        ends[store.hash] = store

    def _settle(self, now: float) -> None:
        """Requests whose events must have come by now."""
        lagging = self._lagging
        while lagging and lagging[0][0] <= now:
            until, key, request = lagging.popleft()
            if self._requests.get(key) is not request:
                continue
            request.candidates = [] if request.own is not None else self._begun(request.sent_at, until)
            if request.tokens:
                self._link(key, request)

    def _begun(self, since: float, until: float) -> list[_Store]:
        found = []
        for store in reversed(self._stores):
            if store.at < since:
                break
            if store.at <= until:
                found.append(store)
        return found

    def _link(self, key: Hashable, request: _Request) -> None:
        del self._requests[key]
        size = self._block_size
        depth = request.tokens // size if size else 0
        if not depth:
            return
        end = request.own if request.own is not None else self._one(request, depth)
        run = self._where.get(end) if end is not None else None
        if run is None or end is None or self._depth(run, end) < depth:
            self.unlinked += 1
            return
        self.linked += 1
        while run.base >= depth:
            assert run.parent is not None  # only a root has base 0, and depth is over 0
            run = run.parent
        pieces_a_block = size * request.size / request.tokens / self._piece
        self._hang(_Link(request.chain, depth, pieces_a_block), run)

    def _one(self, request: _Request, depth: int) -> int | None:
        """The last block of the one run that can be this request's; None where there is none, or more."""
        fits = [store for store in request.candidates or () if self._fits(store, request, depth)]
        # Those that came with the first token or before it, where there are any: the others may be the next one's.
        first_at = request.first_at or 0.0
        fits = [store for store in fits if store.at <= first_at] or fits
        if len({store.hash for store in fits}) != 1:
            return None
        found = fits[0]
        if found.claimed is not None and tuple(found.claimed) != tuple(request.chain):
            self._unlink(found, depth)
            return None
        found.claimed = request.chain
        return found.hash

    def _fits(self, store: _Store, request: _Request, depth: int) -> bool:
        if store.end != depth:
            return False
        if request.cached is not None:
            return request.cached // self._block_size == _start(store, request.sent_at)
        # Not the next block of an answer that was under way.
        return not (store.single and store.before is not None and store.before.at < request.sent_at)

    def _unlink(self, store: _Store, depth: int) -> None:
        """Two prompts claim the same blocks, so one of them is wrong."""
        run = self._where.get(store.hash)
        claimed = store.claimed
        if run is not None and claimed is not None:
            for key in [k for k, link in run.links.items() if link.depth == depth and link.chain is claimed]:
                del run.links[key]

    def __repr__(self) -> str:
        return (
            f"<KvBlocks {self.engine}: {len(self._where):,} blocks of {self._block_size}, "
            f"{self.linked} linked, {self.unlinked} not, {self.strays} strays>"
        )


def _start(store: _Store, since: float) -> int:
    """The depth at which the prompt that `store` is the last of was begun: its chunks follow each other."""
    while store.before is not None and store.before.at >= since and store.before.end == store.start:
        store = store.before
    return store.start
