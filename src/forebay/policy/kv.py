"""What one engine's KV cache holds, and what it will hold at the predicted worst moment.

Theory of operation. Every answer in flight has `private` tokens (its prompt, whole from the moment of admission, and
what it produced) and an expected rest r. With the answers sorted by r, longest first, the i-th sees its end r_i tokens
from now; by then those behind it have left and those before it have grown by r_i as well:

    peak = max over i of  Σ_{j≤i} ceil((private_j + r_i) / b)  +  z · √(Σ_{j≤i} var_j) / b  +  shared

in blocks of b tokens. After LightLLM (lightllm/server/router/req_queue/continues_batch/impl.py, `_can_add_new_req`),
with blocks in place of tokens, and a margin on the sum. `shared` are the blocks of prefixes, each counted once and
until its last holder leaves.

The book keeps answers by the bucket of r, eight an octave, and evaluates one point a bucket that none of its members
exceeds: with H the longer ones and B the bucket, whose longest r can be R,

    (Σ_{H,B} private + |H| · R + Σ_B r + (|H| + |B|)(b − 1)) / b

So `peak` is never under the formula, and over it by at most a block and an eighth of its r an answer (one token where
r < 16). The sums are of whole numbers, so that they do not drift: r and var are rounded up.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil, sqrt
from typing import Final

from forebay.policy.lengths import LONGEST, bucket, first_of

FROZEN_S: Final = 5.0
"""An engine that holds something and reports the very same use for so long is not measuring it."""
INSISTS_S: Final = 60.0
"""An engine that says a capacity for so long is believed, however far it is from what it said before."""
FADE_S: Final = 2.0
"""A correction halves in this time when no report confirms it."""

_INDICES: Final = range(bucket(LONGEST) + 1)
_LAST: Final = tuple(first_of(i + 1) - 1 for i in _INDICES)
"""The longest rest of each bucket."""


class _Entry:
    __slots__ = ("at", "blocks", "n", "prefix", "private", "rest", "shared", "start", "variance")

    def __init__(self, n: int, start: int, shared: int, prefix: Hashable | None) -> None:
        self.n = n
        self.start = start  # private tokens of each answer when nothing is produced
        self.shared = shared  # blocks
        self.prefix = prefix

    at: int
    """The bucket. This and what follows, of all n answers, is set by `_enter`."""
    private: int
    rest: int
    variance: int
    blocks: int


class _Bucket:
    """What a bucket's answers come to, in tokens."""

    __slots__ = ("answers", "private", "rest", "variance")

    def __init__(self) -> None:
        self.answers = 0
        self.private = 0
        self.rest = 0
        self.variance = 0


class KvBook:
    """Mutable state: the entries; their sums by bucket, of all and of shared prefixes; the correction by the engine's
    reports; and the rows that `peak` is read from, dropped at every change and drawn again when asked for.

    Blocks are of `block_size` tokens. `z`: standard deviations of the predicted sum in the margin (2.33: 99 %).
    """

    __slots__ = (
        "_answers",
        "_best",
        "_buckets",
        "_claim",
        "_correction",
        "_entries",
        "_own",
        "_prefixes",
        "_proposed",
        "_proposed_at",
        "_reported",
        "_rows",
        "_shared",
        "_variance",
        "block_size",
        "capacity_blocks",
        "z",
    )

    def __init__(self, block_size: int, capacity_blocks: int, *, z: float = 2.33) -> None:
        if block_size < 1 or capacity_blocks < 1 or z < 0:
            raise ValueError(f"a KV book needs blocks, capacity and z ≥ 0: {block_size} × {capacity_blocks}, z = {z}")
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.z = z
        self._entries: dict[Hashable, _Entry] = {}
        self._buckets = [_Bucket() for _ in _INDICES]
        self._own = 0  # blocks held now, without shared ones
        self._claim = 0  # Σ (private + r + b − 1): tokens if each grew to its end while all others stay
        self._variance = 0
        self._answers = 0
        self._shared = 0
        self._prefixes: dict[Hashable, dict[int, int]] = {}  # prefix → blocks of it → by how many entries
        self._rows: list[_Row] | None = None
        self._best = 0.0
        self._correction = 0.0
        self._reported: tuple[float, float, int] | None = None  # last report, its use, since when it is the same
        self._proposed = 0  # a capacity, and since when each report says it
        self._proposed_at = 0.0

    # --- a request's life ---------------------------------------------------------------------------------------------

    def hold(
        self,
        key: Hashable,
        prompt_tokens: int,
        mean: float,
        var: float,
        *,
        shared_tokens: int = 0,
        n: int = 1,
        prefix: Hashable | None = None,
    ) -> None:
        """A request is admitted: `n` answers to a prompt, each with `mean` tokens to come (variance `var`). Of the
        prompt, the full blocks of the first `shared_tokens` are held once for all n answers, and once for all requests
        that name the same `prefix`. Raises ValueError where the key is held already."""
        entries = self._entries
        if key in entries:
            raise ValueError(f"{key!r} is held already")
        shared = min(shared_tokens, prompt_tokens) // self.block_size if shared_tokens else 0
        entries[key] = entry = _Entry(n, prompt_tokens - shared * self.block_size, shared, prefix)
        self._answers += n
        if shared:
            self._share(entry)
        self._enter(entry, 0, mean, var)

    def progress(self, key: Hashable, produced: int, mean: float, var: float) -> None:
        """`produced` tokens are there, over all answers of the request; each has `mean` (variance `var`) to come.
        Raises KeyError where it is not held."""
        entry = self._entries[key]
        self._leave(entry)
        self._enter(entry, produced, mean, var)

    def drop(self, key: Hashable) -> bool:
        """The request has ended, in whatever way; False where it was not held."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._leave(entry)
        self._answers -= entry.n
        if entry.shared:
            self._unshare(entry)
        return True

    def _enter(self, entry: _Entry, produced: int, mean: float, var: float) -> None:
        n = entry.n
        rest = min(ceil(mean), LONGEST) if mean > 0 else 0
        entry.at = at = bucket(rest)
        if n == 1:
            entry.private = private = entry.start + produced
            entry.blocks = blocks = -(-private // self.block_size)
            entry.rest = rest
            entry.variance = variance = ceil(var)
        else:
            entry.private = private = n * entry.start + produced
            entry.blocks = blocks = n * -(-(entry.start + produced // n) // self.block_size)
            entry.rest = rest = n * rest
            entry.variance = variance = n * ceil(var)
        self._own += blocks
        self._claim += private + rest
        self._variance += variance
        sums = self._buckets[at]
        sums.answers += n
        sums.private += private
        sums.rest += rest
        sums.variance += variance
        self._rows = None

    def _leave(self, entry: _Entry) -> None:
        private, rest, variance = entry.private, entry.rest, entry.variance
        self._own -= entry.blocks
        self._claim -= private + rest
        self._variance -= variance
        sums = self._buckets[entry.at]
        sums.answers -= entry.n
        sums.private -= private
        sums.rest -= rest
        sums.variance -= variance
        self._rows = None

    def _share(self, entry: _Entry) -> None:
        if entry.prefix is None:
            self._shared += entry.shared
            return
        holders = self._prefixes.setdefault(entry.prefix, {})
        self._shared += max(0, entry.shared - max(holders, default=0))
        holders[entry.shared] = holders.get(entry.shared, 0) + 1

    def _unshare(self, entry: _Entry) -> None:
        if entry.prefix is None:
            self._shared -= entry.shared
            return
        holders = self._prefixes[entry.prefix]
        if holders[entry.shared] > 1:
            holders[entry.shared] -= 1
            return
        del holders[entry.shared]
        self._shared -= max(0, entry.shared - max(holders, default=0))
        if not holders:
            del self._prefixes[entry.prefix]

    # --- what it comes to ---------------------------------------------------------------------------------------------

    @property
    def requests(self) -> int:
        return len(self._entries)

    @property
    def held_blocks(self) -> int:
        """Held now: by the books, and by whatever else the engine reports."""
        return self._own + self._shared + ceil(self._correction)

    @property
    def foreign_blocks(self) -> int:
        """Blocks in use that the books do not know of, by the engine's reports."""
        return ceil(self._correction)

    def peak(self) -> float:
        """Blocks at the predicted worst moment, margin and correction included."""
        if self._rows is None:
            self._draw()
        return self._best + self._shared + self._correction

    def may_reach(self, share: float) -> bool:
        """False where the peak is under this share of the capacity for certain; in O(1)."""
        room = share * self.capacity_blocks - self._shared - self._correction
        claim = self._claim + self._answers * (self.block_size - 1)
        return claim + self.z * sqrt(float(self._variance)) > room * self.block_size

    def peak_with(
        self,
        prompt_tokens: int,
        mean: float,
        var: float,
        n: int = 1,
        *,
        shared_tokens: int = 0,
        prefix: Hashable | None = None,
    ) -> float:
        """What `peak` would be after such a `hold`."""
        rows = self._rows
        if rows is None:
            rows = self._draw()
        b = self.block_size
        shared = min(shared_tokens, prompt_tokens) // b
        private = n * (prompt_tokens - shared * b + b - 1)
        if shared and prefix is not None:
            shared = max(0, shared - max(self._prefixes.get(prefix, ()), default=0))
        rest = min(ceil(mean), LONGEST) if mean > 0 else 0
        variance = n * ceil(var)
        at = bucket(rest)
        z = self.z
        lo, hi = 0, len(rows)
        while lo < hi:  # the first row that is not longer
            mid = (lo + hi) // 2
            if rows[mid].at > at:
                lo = mid + 1
            else:
                hi = mid
        # Those that are longer do not see it. In its own bucket it counts with its own rest.
        best = 0.0
        before = before_variance = 0
        base = 0
        if lo:
            row = rows[lo - 1]
            best, before, base, before_variance = row.best_so_far, row.answers, row.private, row.variance
        if lo == len(rows) or rows[lo].at != at:
            here = base + before * _LAST[at] + private + n * rest
            best = max(best, here + z * sqrt(before_variance + variance))
        else:
            row = rows[lo]
            best = max(best, row.tokens + private + n * rest + z * sqrt(row.variance + variance))
            lo += 1
        for i in range(lo, len(rows)):
            row = rows[i]
            more = private + n * row.edge
            root = sqrt(row.variance + variance)
            # No row from here on can gain more than this one does.
            if row.best_to_come + more + z * (root - row.root) <= best:
                break
            with_it = row.tokens + more + z * root
            if with_it > best:
                best = with_it
        return best / b + self._shared + shared + self._correction

    def fits(
        self,
        prompt_tokens: int,
        mean: float,
        var: float,
        n: int = 1,
        *,
        ceiling_share: float,
        shared_tokens: int = 0,
        prefix: Hashable | None = None,
    ) -> bool:
        """Whether `peak_with` stays within this share of the capacity. Two bounds in O(1) answer where it is clear."""
        b = self.block_size
        room = ceiling_share * self.capacity_blocks - self._shared - self._correction
        rest = min(ceil(mean), LONGEST) if mean > 0 else 0
        claim = self._claim + self._answers * (b - 1) + n * (prompt_tokens + rest + b - 1)
        if claim + self.z * sqrt(float(self._variance + n * ceil(var))) <= room * b:  # a float's root is C's own
            return True
        private = prompt_tokens - (min(shared_tokens, prompt_tokens) // b * b if shared_tokens else 0)
        if self._own + n * -(-private // b) > room:
            return False
        whole = self.peak_with(prompt_tokens, mean, var, n, shared_tokens=shared_tokens, prefix=prefix)
        return whole <= ceiling_share * self.capacity_blocks

    def _draw(self) -> list[_Row]:
        buckets = self._buckets
        b, z = self.block_size, self.z
        rows: list[_Row] = []
        private = before = variance = 0
        best = 0.0
        for at in range(len(buckets) - 1, -1, -1):
            sums = buckets[at]
            count = sums.answers
            if not count:
                continue
            row = _Row()
            row.at = at
            row.edge = edge = _LAST[at]
            private += sums.private + count * (b - 1)
            row.tokens = tokens = private + before * edge + sums.rest
            before += count
            row.private = private
            row.answers = before
            variance += sums.variance
            row.variance = variance
            row.root = root = sqrt(float(variance))
            row.whole = whole = tokens + z * root
            if whole > best:
                best = whole
            row.best_so_far = best
            rows.append(row)
        to_come = 0.0
        for row in reversed(rows):
            if row.whole > to_come:
                to_come = row.whole
            row.best_to_come = to_come
        self._best = best / b
        self._rows = rows
        return rows

    # --- the engine's word --------------------------------------------------------------------------------------------

    def correct(self, used_blocks: int | None, capacity_blocks: int | None, now: float) -> None:
        """A report of the engine: blocks in use, and capacity; None where it does not say, or where a report is due and
        missing. To be called about every report interval either way.

        Use beyond the books (other clients of the engine) is added to them, half of the difference each time; use below
        them is not given away, because a prompt still being prefilled looks the same. No number, a use outside
        0..capacity, and one that has been the very same for FROZEN_S while the engine held something say nothing: then
        the correction fades. A capacity counts when two reports in a row say it, and when it is within 16 × either way
        or nothing else was said for INSISTS_S: what is known may be the lie.
        """
        if capacity_blocks is not None and capacity_blocks != self.capacity_blocks:
            known = self.capacity_blocks
            if capacity_blocks != self._proposed:
                self._proposed, self._proposed_at = capacity_blocks, now
            elif known <= 16 * capacity_blocks <= 256 * known or (
                capacity_blocks >= 1 and now - self._proposed_at >= INSISTS_S
            ):
                self.capacity_blocks = capacity_blocks
        elif capacity_blocks is not None:
            self._proposed = 0
        last = self._reported
        then, since = (now, now) if last is None else (last[0], last[1])
        if used_blocks is None or not 0 <= used_blocks <= self.capacity_blocks:
            trusted = False
            used_blocks = -1 if last is None else last[2]
        else:
            if last is None or used_blocks != last[2]:
                since = now
            trusted = used_blocks == 0 or now - since < FROZEN_S
        if trusted:
            over = used_blocks - self._own - self._shared
            self._correction = max(0.0, self._correction + (over - self._correction) / 2.0)
        elif self._correction:
            self._correction *= 0.5 ** (max(0.0, now - then) / FADE_S)
        if self._correction < 0.5:
            self._correction = 0.0
        self._reported = (now, since, used_blocks)

    def __repr__(self) -> str:
        foreign = f", {self.foreign_blocks:,} of them not its own" if self._correction else ""
        return (
            f"<KvBook {self.held_blocks:,} of {self.capacity_blocks:,} blocks held{foreign}, peak {self.peak():,.0f} | "
            f"{self.requests:,} requests>"
        )


class _Row:
    """A bucket that has answers, in tokens: of it and all longer ones."""

    __slots__ = (
        "answers",
        "at",
        "best_so_far",
        "best_to_come",
        "edge",
        "private",
        "root",
        "tokens",
        "variance",
        "whole",
    )

    at: int
    edge: int
    private: int
    answers: int
    variance: int
    root: float
    tokens: int
    whole: float
    best_so_far: float
    best_to_come: float
