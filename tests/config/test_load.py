"""Every way a file can be wrong, each with the exact words that name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from forebay.config import database_url
from forebay.config.engine import Engine, EngineKind
from forebay.config.load import load, loads
from forebay.config.models import Class, Config
from forebay.config.problems import ConfigError
from forebay.state.messages import admin_socket, worker_socket

NAME = "a name of 1 to 128 characters: letters, digits and . _ : / @ + -, beginning with a letter or digit"
ADDRESS = "an address is written host:port (port 0 to 65535), [v6]:port or unix:/absolute/path"
ENGINE = ", ".join(Engine.model_fields)
KINDS = ", ".join(EngineKind)
DATABASE = "postgresql://user:password@host/name or sqlite:////path/forebay.db"
ENV = {"PORT": "8000", "WORD": "hidden-in-the-environment", "EMPTY": "", "YAML": "x\nadmin: 0.0.0.0:1 # {a: [b"}


class Bad(NamedTuple):
    id: str
    text: str
    problems: list[str]
    """Without the file's name."""


BAD = [
    # --- not YAML
    Bad("tab", "limits:\n\tpipelined: 2\n", ["2: a tab cannot indent YAML; use spaces"]),
    Bad("indent", "limits:\n  pipelined: 2\n connections: 3\n",
        ["3: not YAML: expected <block end>, but found '<block mapping start>' "
         "(while parsing a block mapping that begins on line 1)"]),
    Bad("colon", "admin: a: b\n", ["1: not YAML: mapping values are not allowed here"]),
    Bad("quote", "admin: 'x\n", ["2: not YAML: found unexpected end of stream "
                                 "(while scanning a quoted scalar that begins on line 1)"]),
    Bad("variable in a flow", "cors: {origins: ${WORD}}\n",
        ["1: not YAML: expected ',' or '}', but got '{'; inside [ ] or { } a value with ${…} needs quotes"]),
    Bad("v6 unquoted", "admin: [::1]:8081\n",
        ['1: not YAML: expected <block end>, but found \'<scalar>\'; an address with [ ] needs quotes: "[::1]:8080"']),
    Bad("undefined alias", "admin: *there\n", ["1: not YAML: found undefined alias 'there'"]),
    Bad("two documents", "admin: 127.0.0.1:1\n---\nadmin: 127.0.0.1:2\n",
        ["2: the file must hold one YAML document (found a second one, after ---)"]),
    Bad("control character", "admin: 127.0.0.1:1\n\nlimits: \x01\n",
        ["3: a control character is not allowed in YAML (found U+0001)"]),
    Bad("deep", "models: " + "[" * 3_000, [" the file is nested too deeply (allowed at most 32 levels)"]),
    Bad("list", "- admin\n", ["1: the file must be a mapping of keys to values (found a list)"]),
    Bad("word", "\n\nhello\n", ["3: the file must be a mapping of keys to values (found 'hello')"]),
    Bad("duplicates", "limits:\n  pipelined: 2\n  pipelined: 3\nadmin: 127.0.0.1:9\nlimits: {}\n",
        ["3: limits.pipelined: given twice; the first is on line 2", "5: limits: given twice; the first is on line 1"]),
    Bad("tag", "admin: !!python/object:os.system x\nlimits: !env {a: b}\n",
        ["1: admin: YAML tags are not used here (found !!python/object:os.system)",
         "2: limits: YAML tags are not used here (found !env)"]),
    Bad("key that is a list", "? [a, b]\n: 1\n", ["1: a key must be a plain word or a quoted string"]),
    Bad("alias of itself", "models: &m\n  a: *m\n", ["2: models.a: an alias refers to a value that it is part of"]),
    Bad("merge of a word", "limits:\n  <<: hello\n",
        ["2: limits: << takes a mapping or a list of mappings (found 'hello')"]),
    Bad("alias bomb",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)),
        [" the file has too many values (allowed at most 100,000, aliases expanded)"]),
    Bad("long number", "limits:\n  pipelined: " + "9" * 5_000 + "\n",
        ["2: limits.pipelined: cannot be read as a number (found '" + "9" * 80 + "…')"]),
    # --- variables
    Bad("variables", "admin: ${NO_SUCH}:${NOR_THIS}\ncors:\n  origins:\n    - https://${HOST-x}\n    - ${unclosed\n",
        ["1: admin: the environment variable NO_SUCH is not set; set it or write ${NO_SUCH:-default}",
         "1: admin: the environment variable NOR_THIS is not set; set it or write ${NOR_THIS:-default}",
         "4: cors.origins[0]: a variable is written ${NAME} or ${NAME:-default}, and a literal ${ as $${",
         "5: cors.origins[1]: a variable is written ${NAME} or ${NAME:-default}, and a literal ${ as $${"]),
    Bad("a variable's value is not shown", "limits:\n  pipelined: ${WORD}\nadmin: ${WORD}\n",
        ["2: limits.pipelined: not a whole number (found '${WORD}'; allowed a whole number from 1 to 1,000)",
         f"3: admin: {ADDRESS} (found '${{WORD}}')"]),
    Bad("a variable cannot add keys", "admin: ${YAML}\n", [f"1: admin: {ADDRESS} (found '${{YAML}}')"]),
    # --- single values
    Bad("unknown keys", "listners: []\nengines:\n  - name: a\n    url: http://h\n    apikey: sk-secret\nzzz: 1\n",
        ["1: listners: unknown key; did you mean listeners? (allowed listeners, admin, state_dir, database, engines, "
         "engines_file, health, models, callers, limits, timeouts, retries, cors, logging, metrics, admission, "
         "placement, disaggregation, cache, ledger, quotas, alerts)",
         f"5: engines[0].apikey: unknown key; did you mean api_key? (allowed {ENGINE})",
         "6: zzz: unknown key (allowed listeners, admin, state_dir, database, engines, "
         "engines_file, health, models, callers, limits, timeouts, retries, cors, logging, metrics, admission, "
         "placement, disaggregation, cache, ledger, quotas, alerts)"]),
    Bad("missing", "engines:\n  - kind: vllm\n",
        [f"2: engines[0].name: missing (allowed {NAME})",
         "2: engines[0].url: missing "
         "(allowed http:// or https:// and a host, without `/v1`; a path is kept as a prefix. Required, except with "
         "launch)"]),
    Bad("choices", "engines:\n  - name: a\n    url: http://h\n    kind: VLM\nlogging:\n  level: loud\n",
        [f"4: engines[0].kind: not one of the choices; did you mean vllm? (found 'VLM'; allowed {KINDS})",
         "6: logging.level: not one of the choices (found 'loud'; allowed debug, info, warning, error)"]),
    Bad("priority of an API", "engines:\n  - {name: a, url: 'http://h', kind: openai, priority: true}\n",
        ["2: engines[0]: priority is for engines of the kinds vllm and sglang, not openai"]),
    Bad("ranges", "limits:\n  pipelined: 0\n  body_bytes: 99999999999\ntimeouts:\n  idle: 0\n  drain: .inf\n"
        "  body: .nan\nretries:\n  budget: 1.5\n  attempts: 2.5\n",
        ["2: limits.pipelined: out of range (found 0; allowed a whole number from 1 to 1,000)",
         "3: limits.body_bytes: out of range (found 99999999999; allowed a whole number from 1,024 to 1,073,741,824)",
         "5: timeouts.idle: out of range (found 0; allowed a number over 0 up to 86,400)",
         "6: timeouts.drain: out of range (found inf; allowed a number over 0 up to 86,400)",
         "7: timeouts.body: out of range (found nan; allowed a number over 0 up to 86,400)",
         "9: retries.budget: out of range (found 1.5; allowed a number from 0 to 1)",
         "10: retries.attempts: not a whole number (found 2.5; allowed a whole number from 1 to 10)"]),
    Bad("receivers of alerts", "alerts:\n  receivers:\n    - {name: a, url: ftp://h/token}\n"
        "    - {name: a, url: 'https://u:pw@h/token'}\n"
        "    - {name: d, kind: pigeon, url: 'https://h', rules: [burst, gust]}\n",
        ["3: alerts.receivers[0].url: a receiver's url starts with http:// or https:// and names a host (found a value "
         "that is not shown)",
         "4: alerts.receivers[1].url: a receiver's url has no fragment, user or password (found a value that is not "
         "shown)",
         "4: alerts.receivers[1].name: another receiver has this name: alerts.receivers[0].name on line 3 (found 'a')",
         "5: alerts.receivers[2].kind: not one of the choices (found 'pigeon'; allowed webhook, slack, feishu, "
         "dingtalk)",
         "5: alerts.receivers[2].rules[1]: not one of the choices; did you mean burst? (found 'gust'; allowed "
         "quota_near, quota_reached, burst, budget_forecast, unpriced_model, spend_anomaly, ledger_trouble)"]),
    Bad("secrets of receivers", "alerts:\n  receivers:\n    - {name: b, url: 'http://h', secret: tooshort}\n"
        "    - {name: c, kind: slack, url: 'https://h', secret: 0123456789abcdefghij}\n"
        "    - {name: e, url: 'http://h', secret: 'whsec_?'}\n",
        ["3: alerts.receivers[0]: a secret is at least 16 characters long",
         "4: alerts.receivers[1]: Slack's webhooks have no secret but their url: leave secret out",
         "5: alerts.receivers[2]: a secret that begins with whsec_ goes on in base64"]),
    Bad("types", "engines: http://h\nlimits: 3\ntimeouts:\n  idle: soon\nlogging:\n  requests: maybe\ncors:\n"
        "  origins: {a: b}\nmodels: [a]\nstate_dir: 3\n",
        ["1: engines: not a list (found 'http://h'; allowed a list, each a mapping with the keys " + ENGINE + ")",
         "2: limits: not a mapping (found 3; allowed a mapping with the keys header_bytes, header_count, body_bytes, "
         "response_bytes, error_bytes, event_bytes, write_buffer_bytes, connections, pipelined, end_users)",
         "4: timeouts.idle: not a number (found 'soon'; allowed a number over 0 up to 86,400)",
         "6: logging.requests: neither true nor false (found 'maybe'; allowed true or false)",
         "8: cors.origins: not a list (found a mapping; allowed a list, each text)",
         "9: models: not a mapping (found a list; allowed a mapping by name)",
         "10: state_dir: not a path (found 3; allowed a path)"]),
    Bad("emptied section", "timeouts:\n  # idle: 3\nengines:\n",
        ["1: timeouts: not a mapping (found nothing; allowed a mapping with the keys header, body, idle, write, "
         "connect, first_byte, stream_idle, upstream_idle, upstream_age, drain, drain_delay)",
         f"3: engines: not a list (found nothing; allowed a list, each a mapping with the keys {ENGINE})"]),
    Bad("names", "engines:\n  - name: my engine\n    url: http://h\n    models: [7, '']\nmodels:\n  'a b': {}\n",
        [f"2: engines[0].name: not a name that can be used (found 'my engine'; allowed {NAME})",
         f"4: engines[0].models[0]: not text; put it in quotes if it is meant as text (found 7; allowed {NAME})",
         f"4: engines[0].models[1]: too short (found ''; allowed {NAME})",
         f"6: models[\"a b\"]: not a name that can be used (found 'a b'; allowed {NAME})"]),
    Bad("addresses", "listeners:\n" + "".join(f"  - address: {a}\n" for a in (
            "8080", "'8080'", "':80'", "h:70000", "unix:run.sock", "'[zz]:1'", "'[1:2]:3'", "{}", "h:80/x")),
        [f"2: listeners[0].address: {ADDRESS} (found 8080)",
         f"3: listeners[1].address: {ADDRESS} (found '8080')",
         f"4: listeners[2].address: {ADDRESS} (found ':80')",
         f"5: listeners[3].address: {ADDRESS} (found 'h:70000')",
         "6: listeners[4].address: a Unix socket is written unix:/absolute/path, at most 100 bytes long "
         "(found 'unix:run.sock')",
         f"7: listeners[5].address: {ADDRESS} (found '[zz]:1')",
         f"8: listeners[6].address: {ADDRESS} (found '[1:2]:3')",
         "9: listeners[7].address: an address has either a host and a port or a unix path",
         f"10: listeners[8].address: {ADDRESS} (found 'h:80/x')"]),
    Bad("no listener", "listeners: []\n", ["1: listeners: at least one listener is needed (found a list)"]),
    Bad("proxies", "listeners:\n  - address: 127.0.0.1:1\n    trusted_proxies: [10.0.0.0/8, my-proxy]\n",
        ["3: listeners[0].trusted_proxies: 'my-proxy' is neither an address, a CIDR range nor the word unix "
         "(found a list)"]),
    Bad("urls", "engines:\n" + "".join(f"  - {{name: e{i}, url: '{u}'}}\n" for i, u in enumerate((
            "h:8000", "http://h/v1/", "http://h:99999", "http://u:sesame@h", "http://h?key=sesame",
            "http://[", "http://a b"))),
        ["2: engines[0].url: an engine's url starts with http:// or https:// and names a host (found 'h:8000')",
         "3: engines[1].url: leave /v1 off: it is added to each request's path (found 'http://h/v1/')",
         "4: engines[2].url: an engine's url has a port from 1 to 65535 (found 'http://h:99999')",
         "5: engines[3].url: an engine's url has no query, fragment or user; put the key in api_key (found 'http://…@h')",
         "6: engines[4].url: an engine's url has no query, fragment or user; put the key in api_key (found 'http://h?…')",
         "7: engines[5].url: an engine's url starts with http:// or https:// and names a host (found 'http://[')",
         "8: engines[6].url: an engine's url starts with http:// or https:// and names a host (found 'http://a b')"]),
    Bad("model defaults", "models:\n  a:\n    defaults: {model: b, stream: true, top_p: 1}\n"
        "  gpt-4.1:\n    defaults: {top_p: .nan}\n",
        ["3: models.a.defaults: model, stream cannot have a default",
         '5: models["gpt-4.1"].defaults: a default must be a value that JSON has: no .nan, no .inf']),
    # --- secrets
    Bad("database of another kind", "database: mysql+aiomysql://u:geheim@h/x\n",
        [f"1: database: 'mysql+aiomysql' is not supported (allowed {DATABASE})"]),
    Bad("database by a driver of its own", "admin: 127.0.0.1:9\ndatabase: postgresql+asyncpg://u:geheim@h/x\n",
        [f"2: database: 'postgresql+asyncpg' is not supported (allowed {DATABASE})"]),
    Bad("database with a word for a port", "database: postgresql://u:geheim@h:port/x\n",
        [f"1: database: the port is not a number (allowed {DATABASE})"]),
    Bad("database that is no URL", "database: geheim\n", [f"1: database: not a URL (allowed {DATABASE})"]),
    Bad("pgvector without a PostgreSQL", "cache:\n  enabled: true\n  semantic: {enabled: true, index: pgvector}\n"
        "database: sqlite:////x\n",
        ["3: cache.semantic.index: pgvector needs a PostgreSQL in `database`: postgresql://user:password@host/name"]),
    Bad("database in memory", "database: sqlite://\n",
        [f"1: database: an SQLite URL names a file, after three slashes (allowed {DATABASE})"]),
    Bad("state_dir too long for sockets", f"state_dir: /{'x' * 90}\n",
        ["1: state_dir: too long by 2 bytes: a socket's path has at most 107, and sockets are made in it"]),
    Bad("secrets are not shown", "database: 3\nengines:\n  - {name: a, url: http://h, api_key: 12345}\n"
        "  - {name: b, url: http://h, api_key: 'two words'}\ncallers:\n  keys:\n    - sk-in-the-wrong-place\n"
        "    - {name: b, key: sk-too-short}\n",
        ["1: database: not text; put it in quotes if it is meant as text (found a value that is not shown; "
         "allowed SQLAlchemy URL, such as postgresql://user:password@host/name (needs forebay[postgres]); "
         "write ${VAR}. Empty: SQLite in state_dir)",
         "3: engines[0].api_key: not text; put it in quotes if it is meant as text "
         "(found a value that is not shown; allowed text of 1 to 4,096 characters)",
         "4: engines[1].api_key: an api_key is printable ASCII without spaces or line ends "
         "(found a value that is not shown)",
         "7: callers.keys[0]: not a mapping (found a value that is not shown; allowed a mapping with the keys "
         "name, key, organisation, department, project, user, models, class, may_raise_class)",
         "8: callers.keys[1].key: a key is at least 20 printable ASCII characters without spaces "
         "(found a value that is not shown)"]),
    Bad("empty variable for a secret", "engines:\n  - {name: a, url: http://h, api_key: '${EMPTY}'}\n",
        ["2: engines[0].api_key: too short (found a value that is not shown; allowed text of 1 to 4,096 characters)"]),
    # --- what does not fit together
    Bad("names twice", "engines:\n  - {name: a, url: http://h}\n  - {name: b, url: nonsense}\n  - {name: a, url: http://i}\n"
        "callers:\n  keys:\n    - {name: k, key: aaaaaaaaaaaaaaaaaaaa}\n    - {name: k, key: aaaaaaaaaaaaaaaaaaaa}\n",
        ["3: engines[1].url: an engine's url starts with http:// or https:// and names a host (found 'nonsense')",
         "4: engines[2].name: another engine has this name: engines[0].name on line 2 (found 'a')",
         "8: callers.keys[1].name: another key has this name: callers.keys[0].name on line 7 (found 'k')",
         "8: callers.keys[1].key: another key has the same text: callers.keys[0].key on line 7"]),
    Bad("aliases", "models:\n  a: {aliases: [x, b]}\n  b: {aliases: [x]}\n",
        ["2: models.a.aliases[1]: the alias is taken: models.b on line 3 (found 'b')",
         "3: models.b.aliases[0]: the alias is taken: models.a.aliases[0] on line 2 (found 'x')"]),
    Bad("addresses twice", "listeners:\n  - address: 127.0.0.1:8081\n  - address: 0.0.0.0:8081\n  - address: unix:/a\n"
        "  - address: unix:/a\n  - address: localhost:0\n  - address: localhost:0\n",
        ["2: listeners[0].address: the address is taken: admin by default is 127.0.0.1:8081 (found '127.0.0.1:8081')",
         "3: listeners[1].address: the address is taken: admin by default is 127.0.0.1:8081 (found '0.0.0.0:8081')",
         "5: listeners[3].address: the address is taken: listeners[2].address on line 4 is unix:/a (found 'unix:/a')"]),
    Bad("admin on a listener", "admin: localhost:8080\n",
        ["1: admin: the address is taken: listeners[0].address by default is 127.0.0.1:8080 (found 'localhost:8080')"]),
    Bad("soft cap", "engines:\n  - {name: a, url: http://h, max_num_seqs: 8, concurrency: 9}\n",
        ["2: engines[0]: concurrency must not be more than max_num_seqs (8)"]),
    Bad("role", "engines: [{name: a, url: http://h, kind: openai, role: prefill}]\n",
        ["1: engines[0]: role prefill is for engines that hand KV over: kind vllm or sglang, not openai"]),
    Bad("late prefill", "engines: [{name: a, url: http://h, role: prefill}]\ntimeouts: {first_byte: 20}\n",
        ["1: disaggregation.longest (30 s) must not be more than timeouts.first_byte (20 s)"]),
    Bad("no first token", "engines: [{name: a, url: http://h}]\nadmission: {enabled: true, ttft: {low: 0.01}}\n",
        ["1: admission.ttft.low promises 0.01 s, and the empty engine a needs 0.0201 s for a prompt of one token "
         "(decode_step 0.02)"]),
    Bad("no pace", "engines: [{name: a, url: http://h}]\nadmission: {enabled: true, tpot: 0.01}\n",
        ["1: admission.tpot promises 0.01 s a token, and the empty engine a needs 0.02 s (decode_step)"]),
    Bad("no cache", "engines: [{name: a, url: http://h, kv_tokens: 32}]\n"
        "admission: {enabled: true, ceilings: {low: 0.9, normal: 1, vip: 1}}\n",
        ["1: kv_tokens 32 of the engine a leave no block of 16 tokens under admission.ceilings.low (0.9)"]),
    Bad("no multiple", "admission: {ttft_multiple: 0.5}\n",
        ["1: admission: ttft_multiple must be 0 or over 1, not 0.5: no engine is faster than it is alone"]),
    Bad("scale", "admission:\n  scale: {least_replicas: 3, most_replicas: 2, most: 0.5}\n",
        ["2: admission.scale.most: out of range (found 0.5; allowed a number from 1 to 100)"]),
    Bad("any key", "listeners:\n  - address: 0.0.0.0:80\ncallers:\n  anonymous:\n    any_key: true\n",
        ["5: callers.anonymous.any_key: any_key needs callers.anonymous.enabled: true",
         "5: callers.anonymous.any_key: any_key is for loopback listeners only, "
         "and listeners[0].address is 0.0.0.0:80"]),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_every_problem_is_named(bad: Bad, tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(bad.text)
    with pytest.raises(ConfigError) as raised:
        load(file, ENV)
    assert [str(p) for p in raised.value.problems] == [f"{file}:{p}" for p in bad.problems]
    for secret in ("sesame", "hidden-in-the-environment", "sk-", "two words"):
        assert secret not in str(raised.value)


def failure(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load(path, {})
    return str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert failure(missing) == f"{missing}: cannot be read: No such file or directory"
    assert failure(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    file = tmp_path / "f.yaml"
    file.write_bytes(b"admin: 127.0.0.1:1\n# caf\xe9\n")
    assert failure(file) == f"{file}:2: the file is not UTF-8 (found byte 0xe9 at offset 24)"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    expected = f"{file}: the file is too large (found over 1,048,576 bytes; allowed at most 1,048,576 bytes)"
    assert failure(file) == expected
    file.write_bytes(b"#" * (1 << 20))
    load(file, {})


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "~", "\ufeff", "--- \n...\n"])
def test_an_empty_file_gives_the_defaults(text: str, tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(text)
    assert load(file, {}) == Config()


def test_values_reach_their_fields(tmp_path: Path) -> None:
    text = """
listeners:
  - address: "[::1]:${PORT}"
  - {address: unix:/run/f.sock}
engines:
  - &base
    name: a
    url: http://h:${PORT}/prefix/
    models: [on, 7b, "8", 2024-01-01]
    health_interval: ${INTERVAL:-0.5}
  - <<: *base
    name: b
    url: https://h
callers:
  anonymous: {enabled: "${YES}", class: normal}
models:
  on:
    defaults: {logit_bias: {50256: -100}, stop: "$$ or $5 or $${X}", n: 2}
"""
    config = loads(text, "x", {"PORT": "8000", "YES": "true"}, base=tmp_path)
    assert [str(x.address) for x in config.listeners] == ["[::1]:8000", "unix:/run/f.sock"]
    assert [(e.name, e.url, e.health_interval) for e in config.engines] == [
        ("a", "http://h:8000/prefix", 0.5),
        ("b", "https://h", 0.5),
    ]
    assert config.engines[1].models == ("on", "7b", "8", "2024-01-01")
    assert config.callers.anonymous.enabled
    assert config.callers.anonymous.class_ is Class.NORMAL
    assert config.models["on"].defaults == {"logit_bias": {"50256": -100}, "stop": "$ or $5 or ${X}", "n": 2}


def test_a_configuration_survives_the_way_to_a_worker() -> None:
    text = (
        "listeners: [{address: 'unix:/a'}]\nengines: [{name: a, url: http://h, api_key: k}]\nmetrics: {slo_ttft: 2}\n"
    )
    config = loads(text, "x", {})
    assert Config.model_validate(json.loads(config.model_dump_json(by_alias=True))) == config


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "forebay.yaml"
    for written, meant in (("state", tmp_path / "state"), ("/var/x", Path("/var/x")), ("~/x", Path("/home/me/x"))):
        file.write_text(f"state_dir: {written}\nadmission: {{record: {written}}}\n")
        config = load(file, {})
        assert (config.state_dir, config.admission.record) == (meant, meant)


def test_lines_are_those_of_the_keys() -> None:
    with pytest.raises(ConfigError) as raised:
        loads("limits:\n  pipelined:\n\n    0\n", "x", {})
    assert [p.line for p in raised.value.problems] == [2]


def test_the_longest_state_dir_is_the_one_whose_sockets_can_be_bound(tmp_path: Path) -> None:
    room = 107 - len(str(worker_socket(Path("/"), 0)))
    fits = "/" + "x" * (room - 1)
    assert loads(f"state_dir: {fits}", "f", {}).state_dir == Path(fits)
    assert len(str(worker_socket(Path(fits), 0))) == 107
    assert len(str(admin_socket(Path(fits)))) <= 107
    with pytest.raises(ConfigError, match="too long by 1 bytes"):
        loads(f"state_dir: {fits}x", "f", {})


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////var/lib/forebay.db",
        "sqlite+pysqlite:///relative.db",
        "postgresql://u:p/w?d@h:5432/x",
        "postgres://h/x",
        "postgresql+psycopg:///x?host=/run/postgresql",
        "postgresql://u@[::1]:5432/x",
    ],
)
def test_databases_that_are_ours(url: str) -> None:
    assert loads(f"database: {url}", "f", {}).database == url


def test_postgresql_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_url, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs its driver; install forebay\[postgres\]"):
        loads("database: postgresql://h/x", "f", {})
