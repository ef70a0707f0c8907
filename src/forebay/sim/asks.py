"""What a request asks for: the bodies of the generating routes, checked in vLLM's order and with its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from forebay.sim import tokens
from forebay.sim.checks import Fields, Rejected, parameter

MAX_N = 128
MAX_LOGPROBS = 20


@dataclass(slots=True)
class Prompt:
    text: str
    tokens: int
    pieces: list[bytes] = field(default_factory=list, repr=False)
    """The tokens, where they are not far too many."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Where SGLang's prefill and decode engine of one request meet."""

    host: str
    port: int | None
    room: int


@dataclass(slots=True)
class Generation:
    """One chat or text completion, every value checked."""

    chat: bool
    model: str
    prompts: list[Prompt]
    max_tokens: int
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stop: list[str] = field(default_factory=list)
    keep_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    priority: int = 0
    """The lowest goes first, whatever the engine's own sign."""
    seed: int | None = None
    top_logprobs: int | None = None
    """None: no logprobs; 0: those of the chosen tokens only."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: Any = None
    last_user: str = ""
    after_tool: bool = False
    """The conversation ends with a tool's result, so words follow."""
    response_format: dict[str, Any] = field(default_factory=dict)
    echo: bool = False
    cache_salt: str | None = None
    kv_transfer: dict[str, Any] = field(default_factory=dict)
    """kv_transfer_params; empty: none."""
    rid: str = ""
    """SGLang's name of the request; empty: none given."""
    bootstrap: Bootstrap | None = None
    flaw: Rejected | None = None
    """What the engine will find wrong with it once it has said 200 to a stream."""


def check_model(fields: Fields, models: tuple[str, ...]) -> str:
    """The model's name; the first one where none is given. Raises Rejected (404) for one that is not served."""
    name = fields.data.get("model") or models[0]
    if name not in models:
        text = f"The model `{name}` does not exist. Valid aliases: {', '.join(models)}."
        raise Rejected(text, status=404, kind="NotFoundError", param="model")
    return str(name)


def _text_of(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, dict) and "text" not in part and part.get("type") not in (None, "text", "refusal"):
            raise Rejected(f"this engine reads text only, not content of type {part.get('type')!r}", param="messages")
    return "".join(parts)


def check_messages(fields: Fields) -> None:
    if "messages" not in fields:
        fields.missing("messages")
        return
    for i, message in enumerate(fields.listing("messages") or ()):
        if not isinstance(message, dict):
            fields.error("dict_type", f"messages.{i}", "Input should be a valid dictionary", message)
        elif "role" not in message:
            fields.error("missing", f"messages.{i}.role", "Field required", message)
        elif not isinstance(message.get("content"), (str, list, type(None))):
            msg = "Input should be a valid string"
            fields.error("string_type", f"messages.{i}.content", msg, message["content"])


OPENING: Final = (b"<|im_start|>", b"assistant", b"\n")
"""The tokens that open an answer in the chat template."""


def chat_prompt(messages: list[dict[str, Any]], tools: list[dict[str, Any]], limit: int) -> Prompt:
    """Through the chat template: four tokens around each message, three that open the answer. Of a text that is over
    `limit` tokens by far it is only known that it is."""
    if not messages:
        raise Rejected("Cannot apply chat template to an empty conversation. Provide at least one message.")
    parts = [_text_of(m.get("content")) for m in messages]
    text = "\n".join(f"{m.get('role')}: {p}" for m, p in zip(messages, parts, strict=True))
    calls = [str(m["tool_calls"]) if m.get("tool_calls") else "" for m in messages]
    known = str(tools) if tools else ""
    least = sum(map(tokens.at_least, (known, *parts, *calls)))
    if least > limit:
        return Prompt(text, least)
    pieces = tokens.pieces(known)
    for message, part, call in zip(messages, parts, calls, strict=True):
        pieces += (OPENING[0], str(message.get("role")).encode("utf-8", "surrogatepass"), OPENING[2])
        pieces += tokens.pieces(part)
        pieces += tokens.pieces(call)
        pieces.append(b"<|im_end|>\n")
    pieces += OPENING
    return Prompt(text, len(pieces), pieces)


def _text_prompt(text: str, limit: int) -> Prompt:
    least = tokens.at_least(text)
    if least > limit:
        return Prompt(text, least)
    pieces = tokens.pieces(text)
    return Prompt(text, len(pieces), pieces)


def read_prompts(fields: Fields, name: str, limit: int) -> list[Prompt]:
    """A string, token numbers, or a list of either. Raises Rejected."""
    value = fields.data.get(name)
    if isinstance(value, str):
        return [_text_prompt(value, limit)]
    if isinstance(value, list) and value:
        if all(isinstance(v, int) for v in value):
            value = [value]
        out = []
        for one in value:
            if isinstance(one, str):
                out.append(_text_prompt(one, limit))
            elif isinstance(one, list) and all(isinstance(v, int) for v in one):
                text = detokenized(one, name)
                out.append(Prompt(text, len(one), [tokens.piece(v) for v in one]))
            else:
                break
        else:
            return out
    if value is None or value == []:
        raise Rejected("Either prompt or prompt_embeds must be provided and non-empty.", param=name)
    fields.error("string_type", name, "Input should be a valid string", value)
    fields.raise_errors()
    return []


def detokenized(numbers: list[int], name: str) -> str:
    """Raises Rejected for a number that is no token."""
    try:
        return tokens.decode(numbers)
    except ValueError as e:
        raise Rejected(f"Token id out of vocabulary: {e}", param=name) from None


def _stops(fields: Fields) -> list[str]:
    value = fields.data.get("stop")
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(s, str) for s in value):
        fields.error("string_type", "stop", "Input should be a valid string", value)
        return []
    if "" in value:
        raise Rejected("stop cannot contain an empty string.")
    return list(value)


def _check_ranges(fields: Fields, limit: int) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.integer(name)
        if value is None:
            continue
        if value < 1:
            raise parameter(name, f"{name} must be at least 1, got {value}.", value)
        if value > limit:
            text = f"{name}={value} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
            raise parameter(name, text, value)
    n = fields.integer("n", 1) or 0
    if n < 1:
        raise Rejected(f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise parameter("n", f"n must be at most {MAX_N}, got {n}.", n)
    temperature = fields.number("temperature")
    if temperature is not None and temperature < 0:
        raise parameter("temperature", f"temperature must be non-negative, got {temperature}.", temperature)
    top_p = fields.number("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise parameter("top_p", f"top_p must be in (0, 1], got {top_p}.", top_p)
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = fields.number(name)
        if penalty is not None and not -2 <= penalty <= 2:
            raise Rejected(f"{name} must be in [-2, 2], got {penalty}.")


def _logprobs(fields: Fields, chat: bool) -> int | None:
    if chat:
        top = fields.integer("top_logprobs")
        wanted = fields.boolean("logprobs")
        fields.raise_errors()
        if top and not wanted:
            raise parameter("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
        count = (top or 0) if wanted else None
    else:
        count = fields.integer("logprobs")
        fields.raise_errors()
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        name = "top_logprobs" if chat else "logprobs"
        raise parameter(name, f"Requested sample logprobs of {count}, which is outside 0 to {MAX_LOGPROBS}", count)
    return count


def check_length(prompt: Prompt, wanted: int | None, limit: int) -> int | None:
    """`wanted`, where it fits. Raises Rejected."""
    if prompt.tokens > limit:
        raise parameter(
            "input_tokens",
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            "length of the input prompt.",
            limit + 1,
        )
    if wanted is not None and prompt.tokens + wanted > limit:
        raise parameter(
            "input_tokens",
            f"This model's maximum context length is {limit} tokens. However, you requested {wanted} output tokens "
            f"and your prompt contains at least {prompt.tokens} input tokens, for a total of at least "
            f"{prompt.tokens + wanted} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
            prompt.tokens,
        )
    return wanted


def read_priority(fields: Fields) -> int:
    return fields.integer("priority", 0) or 0


def no_priority(fields: Fields) -> int:
    """For engines that know none: the field is ignored."""
    return 0


@dataclass(frozen=True, slots=True)
class Rules:
    """In what an engine's reading differs from vLLM's. All raise Rejected."""

    model: Callable[[Fields, tuple[str, ...]], str] = check_model
    """The model that the answer names."""
    ranges: Callable[[Fields, int], None] = _check_ranges
    length: Callable[[Prompt, int | None, int], int | None] = check_length
    """Prompt, max_tokens and the limit: the tokens to generate at most; None: all that fit."""
    priority: Callable[[Fields], int] = read_priority
    completion_tokens: int | None = 16
    """max_tokens of /v1/completions where none is given."""
    strict: bool = True
    """vLLM's word on fields that do not go together."""


VLLM: Final = Rules()


def read_generation(
    fields: Fields, *, chat: bool, models: tuple[str, ...], limit: int, rules: Rules = VLLM
) -> Generation:
    """`limit` is max_model_len in tokens. Raises Rejected."""
    if chat:
        check_messages(fields)
    for name in ("max_tokens", "max_completion_tokens", "n", "seed", "min_tokens"):
        fields.integer(name)
    priority = rules.priority(fields)
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        fields.number(name)
    stream = fields.boolean("stream")
    options = Fields(fields.mapping("stream_options"))
    tools = fields.listing("tools") or []
    response_format = fields.mapping("response_format")
    ignore_eos = fields.boolean("ignore_eos")
    cache_salt = fields.string("cache_salt")
    kv_transfer = fields.mapping("kv_transfer_params")
    stops = _stops(fields)
    fields.raise_errors()
    if rules.strict and "stream_options" in fields and not stream:
        raise parameter("stream_options", "Stream options can only be defined when `stream=True`.")
    top_logprobs = _logprobs(fields, chat) if rules.strict else None
    choice = _tool_choice(fields, tools) if chat else None
    model = rules.model(fields, models)
    rules.ranges(fields, limit)
    wanted = (fields.integer("max_completion_tokens") if chat else None) or fields.integer("max_tokens")
    if wanted is None and not chat:
        wanted = rules.completion_tokens
    messages: list[dict[str, Any]] = fields.data["messages"] if chat else []
    prompts = [chat_prompt(messages, tools, limit)] if chat else read_prompts(fields, "prompt", limit)
    fitting = [rules.length(prompt, wanted, limit) for prompt in prompts]
    longest = max(p.tokens for p in prompts)
    most = None if None in fitting else min(n for n in fitting if n is not None)
    users = [m for m in messages if m.get("role") == "user"]
    return Generation(
        chat=chat,
        model=model,
        prompts=prompts,
        max_tokens=most or max(1, limit - longest),
        n=min(max(1, fields.integer("n", 1) or 1), MAX_N),
        stream=stream,
        include_usage=options.boolean("include_usage"),
        continuous_usage=options.boolean("include_usage") and options.boolean("continuous_usage_stats"),
        stop=stops,
        keep_stop=fields.boolean("include_stop_str_in_output"),
        ignore_eos=ignore_eos,
        min_tokens=fields.integer("min_tokens", 0) or 0,
        priority=priority,
        seed=fields.integer("seed"),
        top_logprobs=top_logprobs,
        tools=tools,
        tool_choice=choice,
        last_user=_text_of(users[-1].get("content")) if users else "",
        after_tool=bool(messages) and messages[-1].get("role") == "tool",
        response_format=response_format,
        echo=not chat and fields.boolean("echo"),
        cache_salt=cache_salt,
        kv_transfer=kv_transfer,
    )


def _tool_choice(fields: Fields, tools: list[Any]) -> Any:
    """ "none", "auto", "required", or the name of a function in a one-key dict."""
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            fields.error("missing", f"tools.{i}.function.name", "Field required", tool)
    fields.raise_errors()
    choice = fields.data.get("tool_choice")
    if choice is None:
        return "auto" if tools else "none"
    if choice in ("none", "auto"):
        return choice
    if not tools:
        raise Rejected("When using `tool_choice`, `tools` must be set.")
    names = [t["function"]["name"] for t in tools]
    if choice == "required":
        return choice
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Rejected(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        )
    if function["name"] not in names:
        raise Rejected("The tool specified in `tool_choice` does not match any of the specified `tools`")
    return {"name": function["name"]}
