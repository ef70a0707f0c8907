"""Step times from measured kernels: one layer of each kind, by the tokens, sequences and KV lengths of a step.

The form of the files is LLMServingSim's (docs/docs/profiler/output-bundle.md): GPU/MODEL/meta.yaml and
tpN/{dense,attention,per_sequence,moe,skew_fit}.csv, times in µs. A step is

    embedding + layers · (norm, QKV, [QK norm], rotary, attention, O, norm, gate-up, activation, down | experts)
    + final norm + LM head + sampler + collectives + host

- What acts on tokens is read at all tokens of the step, padded up to the next CUDA graph as vLLM does
  (vllm/config/compilation.py, `cudagraph_capture_sizes`); the tables are measured without graphs.
- LM head and sampler act on every sequence of the step, also on one whose chunk does not end its prompt: vLLM samples
  for it and drops the token (vllm/v1/worker/gpu_model_runner.py, `_prepare_inputs`).
- Several chunks are one chunk of as many tokens that does as much attention. A chunk of c tokens on a context of k does
  c · (k + c / 2) products, so for C tokens in all K = Σ c (k + c / 2) / C - C / 2. Where K would be below 0 (several
  prompts from their start), the part of t(C, 0) above the least measured chunk shrinks with the products.
- A chunk longer than any measured is taken in pieces, each on the context of those before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from .grids import Axis, Cube, Range, at, bracket
from .skew import Skew
from .steptime import Chunk

CAPTURE_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Token counts that vLLM 0.19 captures a graph for, where `max_num_seqs` is 256 or more."""

_ROWS = 4096
_LISTED = 32_768


def capture_sizes(max_num_seqs: int = 256, max_num_batched_tokens: int = 2048) -> tuple[int, ...]:
    """Token counts that vLLM captures graphs for, up to the least of 512, twice `max_num_seqs` and the token budget
    (vLLM 0.19, vllm/config/vllm.py, `_set_cudagraph_sizes`)."""
    most = min(512, 2 * max_num_seqs, max_num_batched_tokens)
    return tuple(size for size in CAPTURE_SIZES if size <= most)


class Curve(NamedTuple):
    """Seconds by a count, measured at `axis`."""

    axis: Axis
    values: list[float]


class Prefill(NamedTuple):
    """Attention of a chunk alone: seconds by its tokens and the context before it."""

    chunk: Axis
    context: Axis
    grid: list[list[float]]


class Decode(NamedTuple):
    """Attention of decodes alone: seconds by their number and the KV length of each."""

    n: Axis
    kv: Axis
    grid: list[list[float]]


class Mixed(NamedTuple):
    """Attention of a chunk beside decodes: seconds by chunk, context, number of decodes, KV length of each."""

    axes: tuple[Axis, Axis, Axis, Axis]
    grid: Cube


class _Row(NamedTuple):
    """A decode step of one batch size: seconds are starts[i] + (kv - knots[i]) · slopes[i] in segment i."""

    starts: list[float]
    slopes: list[float]
    longs: list[float]
    rates: list[float]
    alphas: list[list[float]] | None


class MeasuredSteps:
    """A `StepTime`. All times given are seconds of the whole model, all layers summed.

    `dense`: by tokens, and `decode_dense` in its place where sequences only decode; `sequences`: by sequences; `mixed`:
    None where chunk and decodes were only measured by themselves: they are added, decodes `beside` times; `pad`: token
    counts that steps are padded up to, empty for none; `host`: added to each step.
    """

    def __init__(
        self,
        title: str,
        *,
        dense: Curve,
        sequences: Curve,
        prefill: Prefill,
        decode: Decode,
        mixed: Mixed | None,
        skew: Skew | None = None,
        decode_dense: Curve | None = None,
        beside: float = 1.0,
        pad: Sequence[int] = CAPTURE_SIZES,
        host: float = 0.0,
        strict: bool = False,
    ) -> None:
        self.title = title
        self._range = Range(title, strict=strict)
        self._dense = dense
        self._decode_dense = decode_dense
        self._sequences = sequences
        self._prefill = prefill
        self._decode = decode
        self._mixed = mixed
        self._factor = beside
        self._skew = skew
        self._host = host
        self._pad = sorted(pad)
        self._by_tokens = [self._tokens(t) for t in range(min(int(dense.axis[-1]), _LISTED) + 1)]
        self._by_sequences = [at(*sequences, s) for s in range(min(int(sequences.axis[-1]), _LISTED) + 1)]
        self._knots = [0.0, *decode.kv]
        self._inner = self._knots[1:-1]
        self._far = self._knots[-1]
        self._rows: dict[int, _Row] = {}

    def __repr__(self) -> str:
        return f"<MeasuredSteps {self.title}>"

    @property
    def warnings(self) -> Sequence[str]:
        return self._range.warnings

    def _padded(self, tokens: int) -> int:
        i = bisect_left(self._pad, tokens)
        return self._pad[i] if i < len(self._pad) else tokens

    def _tokens(self, tokens: int) -> float:
        return at(*self._dense, self._padded(tokens))

    def _decoding(self, n: int) -> float:
        if self._decode_dense is None:
            return self._per_token(n)
        return at(*self._decode_dense, self._padded(n))

    def _per_token(self, tokens: int) -> float:
        try:
            return self._by_tokens[tokens]
        except IndexError:
            if tokens > self._dense.axis[-1]:
                self._range.beyond("tokens in a step", tokens, self._dense.axis[-1])
            return self._tokens(tokens)

    def _per_sequence(self, sequences: int) -> float:
        try:
            return self._by_sequences[sequences]
        except IndexError:
            if sequences > self._sequences.axis[-1]:
                self._range.beyond("sequences in a step", sequences, self._sequences.axis[-1])
            return at(*self._sequences, sequences)

    def decode(self, n: int, context: int, longest: int) -> float:
        starts, slopes, longs, rates, alphas = self._rows.get(n) or self._row(n)
        inner = self._inner
        knots = self._knots
        mean = context / n
        i = bisect_right(inner, mean)
        seconds = starts[i] + (mean - knots[i]) * slopes[i]
        if longest > self._far:
            self._range.beyond("KV tokens of a sequence", longest, self._far)
        if alphas is not None and longest > mean:
            alpha = alphas[bisect_left(longs, longest)][bisect_left(rates, mean / longest)]
            j = bisect_right(inner, longest)
            seconds += alpha * (starts[j] + (longest - knots[j]) * slopes[j] - seconds)
        return seconds

    def _row(self, n: int) -> _Row:
        if n < 1:
            raise ValueError(f"a decode step needs 1 sequence or more: {n}")
        axis, _, grid = self._decode
        if n > axis[-1]:
            self._range.beyond("sequences that decode", n, axis[-1])
        fixed = self._decoding(n) + self._per_sequence(n) + self._host
        values = [fixed + at(axis, [row[k] for row in grid], n) for k in range(len(self._decode.kv))]
        values.insert(0, values[0])
        slopes = [
            (b - a) / (q - p) for a, b, p, q in zip(values, values[1:], self._knots, self._knots[1:], strict=False)
        ]
        slopes[-1] = max(slopes[-1], 0.0)
        longs, rates, alphas = self._skew.of_decodes(n) if self._skew and n > 1 else ([], [], None)
        row = _Row(values[:-1], slopes, longs, rates, alphas)
        if len(self._rows) >= _ROWS:
            self._rows.clear()
        self._rows[n] = row
        return row

    def mixed(self, chunks: Sequence[Chunk], n: int, context: int, longest: int) -> float:
        tokens = 0
        products = 0.0
        for size, before, _ in chunks:
            tokens += size
            products += size * (before + size / 2)
        if tokens < 1:
            raise ValueError(f"a mixed step needs chunks with tokens: {chunks}")
        seconds = self._host + self._per_token(tokens + n) + self._per_sequence(n + len(chunks))
        ahead = products / tokens - tokens / 2
        most = self._prefill.chunk[-1]
        if tokens <= most and ahead >= 0:
            return seconds + self._attention(tokens, ahead, n, context, longest)
        if ahead < 0:
            whole = self._pieces(tokens, 0.0, n, context, longest)
            least = self._prefill.grid[0][0]
            spared = max(0.0, self._pieces(tokens, 0.0, 0, 0, 0) - least) * (1 - products / (tokens * tokens / 2))
            return seconds + max(0.0, whole - spared)
        return seconds + self._pieces(tokens, ahead, n, context, longest)

    def _pieces(self, tokens: int, before: float, n: int, context: int, longest: int) -> float:
        most = int(self._prefill.chunk[-1])
        if tokens <= most:
            return self._attention(tokens, before, n, context, longest)
        self._range.beyond("prefill tokens in a step", tokens, most)
        seconds = self._attention(most, before, n, context, longest)
        least = self._prefill.grid[0][0]
        done = most
        while done < tokens:
            piece = min(most, tokens - done)
            seconds += max(0.0, self._attention(piece, before + done, 0, 0, 0) - least)
            done += piece
        return seconds

    def _attention(self, tokens: float, before: float, n: int, context: int, longest: int) -> float:
        """Attention of one chunk, and of decodes beside it."""
        if before > self._prefill.context[-1]:
            self._range.beyond("KV tokens before a chunk", before, self._prefill.context[-1])
        if n < 1 or self._mixed is None:
            i, u = bracket(self._prefill.chunk, tokens)
            j, v = bracket(self._prefill.context, before)
            grid = self._prefill.grid
            low, high = grid[i], grid[min(i + 1, len(grid) - 1)]
            k = min(j + 1, len(low) - 1)
            a = low[j] + v * (low[k] - low[j])
            alone = max(0.0, a + u * (high[j] + v * (high[k] - high[j]) - a))
            return alone if n < 1 else alone + self._factor * self._decodes(n, context / n)
        return self._beside(self._mixed, tokens, before, n, context, longest)

    def _decodes(self, n: int, kv: float) -> float:
        axis, kvs, grid = self._decode
        if n > axis[-1]:
            self._range.beyond("sequences that decode", n, axis[-1])
        i, w = bracket(axis, n)
        low = at(kvs, grid[i], kv)
        return low + w * (at(kvs, grid[min(i + 1, len(grid) - 1)], kv) - low)

    def _beside(self, mixed: Mixed, tokens: float, before: float, n: int, context: int, longest: int) -> float:
        (chunks, contexts, counts, kvs), grid = mixed
        mean = context / n
        if n > counts[-1]:
            self._range.beyond("sequences that decode beside a chunk", n, counts[-1])
        if longest > kvs[-1]:
            self._range.beyond("KV tokens of a sequence", longest, kvs[-1])
        a, wa = bracket(chunks, tokens)
        b, wb = bracket(contexts, before)
        c, wc = bracket(counts, n)
        d, wd = bracket(kvs, mean)
        alpha = 0.0
        if self._skew is not None and longest > mean and n > 1:
            alpha = self._skew.alpha(tokens, n, mean / longest, longest, before)
        if alpha:
            # between the mean and the longest the curve may bend, so the longest is looked up on its own
            e, we = bracket(kvs, longest)
        else:
            e, we = d, wd
        near = far = 0.0
        for i, x in ((a, 1 - wa), (a + 1, wa)):
            if not x:
                continue
            plane = grid[i]
            for j, y in ((b, 1 - wb), (b + 1, wb)):
                if not y:
                    continue
                xy = x * y
                lines = plane[j]
                for k, z in ((c, 1 - wc), (c + 1, wc)):
                    if not z:
                        continue
                    line = lines[k]
                    low = line[d]
                    near += xy * z * (low + wd * (line[d + 1] - low) if wd else low)
                    if alpha:
                        low = line[e]
                        far += xy * z * (low + we * (line[e + 1] - low) if we else low)
        return max(0.0, near + alpha * (far - near) if alpha else near)
