"""The KV cache of one engine: blocks, who holds them, and which prefixes can be found in them.

After vLLM V1's KVCacheManager and BlockPool (vllm/v1/core/kv_cache_manager.py, block_pool.py), with runs of blocks in
place of single ones. A *stream* is the content behind one prefix key, from its own first block on; `cached` of its
blocks are in memory, always its first ones. Held blocks are those that some job computes on; the rest stay behind as
free but findable, and are evicted least recently freed first, the end of a stream before its beginning.

Free blocks are handed out in this order: never used, then freed, oldest first.

What is computed again while it is in memory makes a second block of the same content. vLLM can find both; here the
one that is held has the name, and where both are, the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

Key = int | str


class Stream:
    """Content that can be shared. State: its blocks in memory, who holds how many of them, and which are free."""

    __slots__ = ("cached", "free", "held", "holders", "key", "leases")

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.leases = 0
        self.cached = 0
        self.held = 0
        self.holders: dict[int, int] = {}  # blocks held → by how many jobs
        self.free: list[_Run] = []  # what of it is in the free queue, deepest first

    def __repr__(self) -> str:
        return f"<Stream {self.key!r} {self.held} held of {self.cached} cached>"


def _drop(holders: dict[int, int], n: int) -> None:
    if holders[n] == 1:
        del holders[n]
    else:
        holders[n] -= 1


class _Run:
    """Neighbouring free blocks [lo, hi) of a stream, or of none."""

    __slots__ = ("hi", "lo", "stream")

    def __init__(self, stream: Stream | None, lo: int, hi: int) -> None:
        self.stream = stream
        self.lo = lo
        self.hi = hi


class Lease:
    """What one job holds: a chain of streams with a number of blocks of each, and blocks that nobody can find."""

    __slots__ = ("blocks", "chain", "copies", "parts")

    def __init__(self, chain: tuple[tuple[Stream, int], ...]) -> None:
        self.chain = chain
        """(stream, the most blocks of it that this job's content has); the last one is open-ended."""
        self.parts: list[int] = []
        """Blocks held of each stream of the chain so far."""
        self.copies: list[int] = []
        """How many of each come after those, second ones of what is in memory already: nobody can find them."""
        self.blocks = 0
        """All that is held."""

    def __repr__(self) -> str:
        return f"<Lease {self.blocks} blocks>"


NO_END: Final = 1 << 60


class BlockPool:
    """`capacity` blocks of `block_size` tokens. Without `caching` nothing is found again."""

    def __init__(self, capacity: int, block_size: int, *, caching: bool = True) -> None:
        if capacity < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs at least one block of one token: {capacity} × {block_size}")
        self.capacity = capacity
        self.block_size = block_size
        self.caching = caching
        self.free = capacity
        """Blocks that nobody holds, findable ones among them."""
        self.evicted = 0
        self._virgin = capacity
        self._queue: deque[_Run] = deque()
        self._streams: dict[Key, Stream] = {}
        self.heard: Callable[[Key, bool], None] | None = None
        """Told when the first block of a stream comes to be in memory (True), and when the last one is gone."""

    @property
    def used(self) -> int:
        return self.capacity - self.free

    # --- a job's life ------------------------------------------------------------------------------------------------

    def open(self, prefix: tuple[tuple[Key, int], ...], keeps: Key | None) -> Lease:
        """A lease on nothing yet for content that begins with `prefix` ((key, tokens) pieces) and goes on under the key
        `keeps`, or under none. To be closed."""
        if not self.caching or (not prefix and keeps is None):
            return Lease(((Stream(None), NO_END),))
        chain: list[tuple[Stream, int]] = []
        tokens = blocks = 0
        for key, size in prefix:
            tokens += size
            upto = tokens // self.block_size
            chain.append((self._stream(key), upto - blocks))
            blocks = upto
        if keeps is not None and prefix and prefix[-1][0] == keeps:
            chain[-1] = (chain[-1][0], NO_END)
        else:
            chain.append((Stream(None) if keeps is None else self._stream(keeps), NO_END))
        for stream, _ in chain:
            stream.leases += 1
        return Lease(tuple(chain))

    def close(self, lease: Lease) -> None:
        """The job has ended, and has given all back."""
        for stream, _ in lease.chain:
            if stream.key is not None:
                stream.leases -= 1
                self._forget(stream)

    def hit(self, lease: Lease, tokens: int) -> tuple[int, int]:
        """(blocks of the first `tokens` tokens that are in memory, how many of these are free and would be taken out of
        the free blocks). Only full blocks count, and never the last token: it must be computed to sample the next."""
        if not self.caching:
            return 0, 0
        most = (tokens - 1) // self.block_size
        found = free = 0
        for stream, size in lease.chain:
            want = min(size, most - found)
            have = min(want, stream.cached)
            found += have
            if have > stream.held:
                free += have - stream.held
            if have < size:
                break
        return found, free

    def cached(self, prefix: Sequence[tuple[Key, int]]) -> int:
        """Tokens from the begin of content that begins with `prefix` whose full blocks are in memory: what an engine's
        KV events tell."""
        tokens = blocks = found = 0
        for key, size in prefix:
            tokens += size
            want = tokens // self.block_size - blocks
            blocks += want
            stream = self._streams.get(key)
            have = 0 if stream is None else min(want, stream.cached)
            found += have
            if have < want:
                break
        return found * self.block_size

    def take_hit(self, lease: Lease, found: int) -> None:
        """Hold the first `found` blocks, as `hit` counted them."""
        for stream, size in lease.chain:
            if not found:
                break
            have = min(size, found)
            lease.parts.append(have)
            lease.copies.append(0)
            if have:  # a piece shorter than a block has none of its own
                self._hold(stream, have)
                lease.blocks += have
                found -= have

    def take(self, n: int) -> None:
        """Take `n` free blocks for new content; what was in them is gone. The caller has seen to it that they exist."""
        self.free -= n
        if n <= self._virgin:
            self._virgin -= n
            return
        n -= self._virgin
        self._virgin = 0
        queue = self._queue
        while n:
            run = queue[0]
            some = min(run.hi - run.lo, n)
            run.hi -= some
            n -= some
            stream = run.stream
            if stream is not None and some:
                self.evicted += some
                stream.cached = run.hi
                if not run.hi and self.heard is not None and stream.key is not None:
                    self.heard(stream.key, False)
                if run.hi == run.lo:
                    stream.free.remove(run)
                    self._forget(stream)
            if run.hi == run.lo:
                queue.popleft()

    def assign(self, lease: Lease, n: int) -> None:
        """`n` blocks that were taken belong to this lease."""
        if n <= 0:
            return
        lease.blocks += n
        chain, parts, copies = lease.chain, lease.parts, lease.copies
        if not parts:
            parts.append(0)
            copies.append(0)
        while n:
            stream, size = chain[len(parts) - 1]
            have = parts[-1]
            if stream.cached == have and have + n <= size and not copies[-1]:
                self._grow(stream, have, n)
                parts[-1] = have + n
                return
            more = min(n, size - have - copies[-1])
            n -= more
            copies[-1] += more
            if not n and stream.cached >= have + copies[-1]:
                # The last may never be full, and stands in memory already.
                self._name(lease, copies[-1] - 1)
                return
            self._name(lease, copies[-1])
            if n:
                parts.append(0)
                copies.append(0)

    def give_back(self, lease: Lease, tokens: int) -> None:
        """Free all that is held; `tokens` were computed, so that what is full among it can be found again."""
        parts, chain, copies = lease.parts, lease.chain, lease.copies
        if parts:
            # The block at the end is not full, so nobody can find it.
            have = parts[-1]
            full = max(0, have + copies[-1] - lease.blocks + tokens // self.block_size)
            if full > have:
                self._name(lease, full - have)
            elif full < have:
                self._cut(chain[len(parts) - 1][0], have, full)
                parts[-1] = full
        for i in range(len(parts) - 1, -1, -1):
            if copies[i]:
                self._free_unnamed(copies[i])
            if parts[i]:
                self._release(chain[i][0], parts[i])
        parts.clear()
        copies.clear()
        lease.blocks = 0

    def clear(self) -> bool:
        """Forget what can be found. False, and nothing done, where a job holds a block (as vLLM's
        reset_prefix_cache)."""
        if self.used:
            return False
        for stream in tuple(self._streams.values()):
            stream.cached = 0
            stream.free.clear()
            self._forget(stream)
        self._queue = deque([_Run(None, 0, self.capacity - self._virgin)])
        return True

    # --- inside ------------------------------------------------------------------------------------------------------

    def _stream(self, key: Key) -> Stream:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(key)
        return stream

    def _hold(self, stream: Stream, n: int) -> None:
        """Hold its first `n` blocks, which are cached."""
        if n > stream.held:
            free = stream.free
            while free and free[-1].lo < n:
                run = free[-1]
                upto = min(run.hi, n)
                self.free -= upto - run.lo
                run.lo = upto
                if upto < run.hi:
                    break
                free.pop()
            stream.held = n
        stream.holders[n] = stream.holders.get(n, 0) + 1

    def _name(self, lease: Lease, n: int) -> None:
        """The first `n` copies of its last stream are found from now on in place of the others, where nobody holds
        those."""
        stream, have = lease.chain[len(lease.parts) - 1][0], lease.parts[-1]
        if n and stream.held <= have:
            if stream.cached > have:
                self._unname(stream, have + n)
            self._grow(stream, have, n)
            lease.parts[-1] = have + n
            lease.copies[-1] -= n

    def _unname(self, stream: Stream, upto: int) -> None:
        """Its blocks before `upto` that nobody holds stay where they are in the queue, and cannot be found there."""
        free = stream.free
        while free and free[-1].lo < upto:
            run = free[-1]
            if run.hi > upto:  # its end is evicted first
                self._queue.insert(self._queue.index(run) + 1, _Run(None, run.lo, upto))
                run.lo = upto
                break
            run.stream = None
            free.pop()

    def _grow(self, stream: Stream, have: int, more: int) -> None:
        """Its holder of `have` blocks, all that are held, computes `more`."""
        holders = stream.holders
        if have:
            _drop(holders, have)
        now = have + more
        holders[now] = holders.get(now, 0) + 1
        stream.held = now
        if now <= stream.cached:
            return
        known, stream.cached = stream.cached, now
        if not known and self.heard is not None and stream.key is not None:
            self.heard(stream.key, True)

    def _cut(self, stream: Stream, have: int, full: int) -> None:
        """A holder of `have` blocks holds only `full` on; where it alone has the rest, that is free and has no name."""
        holders = stream.holders
        _drop(holders, have)
        if full:
            holders[full] = holders.get(full, 0) + 1
        held = max(holders, default=0)
        stream.held = held
        if held < have == stream.cached:
            stream.cached = held
            self._free_unnamed(have - held)
            if not held and self.heard is not None and stream.key is not None:
                self.heard(stream.key, False)
        elif held < have:
            self._free(stream, held, have)

    def _release(self, stream: Stream, have: int) -> None:
        holders = stream.holders
        _drop(holders, have)
        held = max(holders, default=0)
        if held < have:
            stream.held = held
            self._free(stream, held, have)

    def _free(self, stream: Stream, lo: int, hi: int) -> None:
        self.free += hi - lo
        run = _Run(stream, lo, hi)
        stream.free.append(run)
        self._queue.append(run)

    def _free_unnamed(self, n: int) -> None:
        self.free += n
        self._queue.append(_Run(None, 0, n))

    def _forget(self, stream: Stream) -> None:
        if stream.key is not None and stream.leases == 0 and stream.cached == 0:
            del self._streams[stream.key]

    def __repr__(self) -> str:
        return f"<BlockPool {self.used} of {self.capacity} blocks held, {len(self._streams)} streams>"
