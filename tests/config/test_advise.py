from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config.load import advise, loads, read

KEY = "sk-0123456789abcdefghij"

CASES = {
    "a vendor's key over http": (
        "engines:\n  - name: a\n    url: http://10.0.0.1:8000\n    api_key: ${KEY}\n",
        ["3: engines[0].url: warning: api_key crosses the network unencrypted; use https:// "
         "(found http://10.0.0.1:8000)"],
    ),
    "an engine that is started open to the network, with a token in the file": (
        "engines:\n  - name: a\n    launch:\n      model: m\n      port: 8101\n      host: 0.0.0.0\n"
        "      env:\n        HF_TOKEN: abc\n        CUDA_VISIBLE_DEVICES: '0'\n        OTHER_TOKEN: ${KEY}\n",
        ["6: engines[0].launch.host: warning: the engine is open to the network, without a key; set api_key "
         "(found 0.0.0.0)",
         "8: engines[0].launch.env.HF_TOKEN: warning: the value is readable in the file; write ${VAR}"],
    ),
    "over http to this machine": (
        "engines:\n  - {name: a, url: 'http://127.0.0.1:8000', api_key: '${KEY}'}\n"
        "  - {name: b, url: 'http://[::1]:8000', api_key: '${KEY}'}\n"
        "  - {name: c, url: 'http://localhost', api_key: '${KEY}'}\n",
        [],
    ),
    "secrets in the file": (
        f"database: postgresql://u:pw@h/d\nengines:\n  - {{name: a, url: 'https://h', api_key: {KEY}}}\n"
        f"callers:\n  keys:\n    - name: k\n      key: {KEY}\n",
        ["1: database: warning: the password is readable in the file; write ${VAR}",
         "3: engines[0].api_key: warning: the key is readable in the file; write ${VAR}",
         "7: callers.keys[0].key: warning: the key is readable in the file; write ${VAR}"],
    ),
    "receivers of alerts": (
        "engines: [{name: a, url: 'http://h'}]\nalerts:\n  receivers:\n"
        f"    - {{name: a, url: 'http://h/x', secret: {KEY}}}\n"
        "    - {name: b, kind: slack, url: 'http://hooks.example/T0/B0'}\n"
        "    - {name: c, kind: slack, url: 'http://localhost/${KEY}'}\n",
        ["4: alerts.receivers[0].secret: warning: the secret is readable in the file; write ${VAR}",
         "5: alerts.receivers[1].url: warning: whoever reads the file can post there: slack's url is a secret; write "
         "${VAR}",
         "5: alerts.receivers[1].url: warning: the url, a secret, crosses the network unencrypted; use https://"],
    ),
    "secrets from variables": (
        "database: postgresql://u:${KEY}@h/d\nengines:\n  - {name: a, url: 'https://h', api_key: '${KEY}'}\n"
        "callers:\n  keys:\n    - {name: k, key: '${KEY}'}\n",
        [],
    ),
    "models nobody lists": (
        "engines:\n  - {name: a, url: 'http://h', models: [x]}\n  - {name: b, url: 'http://h', models: [y]}\n"
        "models:\n  x: {aliases: [alias]}\n  gone:\n    aliases: [old]\n"
        "callers:\n  keys:\n    - {name: k, key: '${KEY}', models: [x, y, alias, z]}\n  anonymous: {models: [w]}\n",
        ["6: models.gone: warning: no engine lists this model (allowed x, y)",
         "10: callers.keys[0].models[3]: warning: neither a model of an engine nor an alias (found 'z')",
         "11: callers.anonymous.models[0]: warning: neither a model of an engine nor an alias (found 'w')"],
    ),
    "models that an engine may have": (
        "engines:\n  - {name: a, url: 'http://h', models: [x]}\n  - {name: b, url: 'http://h'}\nmodels:\n  gone: {}\n",
        [],
    ),
    "open to anyone": (
        "listeners:\n  - address: 127.0.0.1:8080\n  - address: 0.0.0.0:8443\nadmin: '[::]:8081'\n"
        "callers: {anonymous: {enabled: true}}\nlogging:\n  bodies: true\nengines: [{name: a, url: 'http://h'}]\n",
        ["3: listeners[1].address: warning: anyone who reaches this address is served (callers.anonymous.enabled) "
         "(found 0.0.0.0:8443)",
         "4: admin: warning: the admin port is open to the network, without keys (found [::]:8081)",
         "7: logging.bodies: warning: prompts and answers are written to the log"],
    ),
    "tls that does nothing": (
        "engines:\n  - name: a\n    url: https://h\n    tls:\n      verify: false\n"
        "  - name: b\n    url: http://h\n    tls: {server_name: x}\n",
        ["5: engines[0].tls.verify: warning: any certificate is accepted, an impostor's too",
         "8: engines[1].tls: warning: not used: the url is http://"],
    ),
    "times and counts": (
        "timeouts:\n  upstream_idle: 400\n  connect: 200\nengines:\n  - name: a\n    url: http://h\n    max_idle: 20\n"
        "    max_connections: 10\n    health_timeout: 51\n",
        ["2: timeouts.upstream_idle: warning: no use over upstream_age (300 s) (found 400)",
         "3: timeouts.connect: warning: no use over first_byte (120 s) (found 200)",
         "7: engines[0].max_idle: warning: more than max_connections (10) (found 20)",
         "9: engines[0].health_timeout: warning: over ten times health_interval (5 s) (found 51)"],
    ),
    "SGLang's halves alone, and a pair of two kinds": (
        "engines:\n  - {name: p, url: 'http://h', kind: sglang, models: [m], role: prefill}\n"
        "  - {name: b, url: 'http://h', kind: sglang, models: [m]}\n"
        "  - {name: d, url: 'http://h', kind: sglang, models: [n], role: decode}\n"
        "  - {name: v, url: 'http://h', kind: vllm, models: [n], role: prefill}\n"
        "  - {name: q, url: 'http://h', kind: sglang, models: [o], role: prefill}\n"
        "  - {name: e, url: 'http://h', models: [o], role: decode}\n",
        ["2: engines[0].role: warning: no engine decodes what it prefills: it gets no requests",
         "4: engines[2].role: warning: no engine prefills what it decodes: it gets no requests",
         "5: engines[3].role: warning: no engine decodes what it prefills: it is used as one of role both"],
    ),
    "placement that does nothing": (
        "engines:\n  - {name: a, url: 'http://h', zone: eu}\n"
        "placement:\n  policy: round_robin\n  session_header: x-session-id\n  report_interval: 2\n",
        ["5: placement.session_header: warning: not used: placement.policy is round_robin"],
    ),
    "a policy that admission overrules, and a zone from nowhere": (
        "engines:\n  - {name: a, url: 'http://h', zone: eu}\nadmission: {enabled: true}\n"
        "placement:\n  policy: round_robin\n",
        ["2: engines[0].zone: warning: not used: placement.zone does not say where the gateway stands (found eu)",
         "5: placement.policy: warning: not used: with admission it is always best (found round_robin)"],
    ),
    "Anthropic without a key": (
        "engines:\n  - {name: a, url: 'https://api.anthropic.com', kind: anthropic, models: [c]}\n",
        ["2: engines[0]: warning: there is no api_key, which Anthropic's API asks for: write ${VAR}"],
    ),
    "a prefill engine alone": (
        "engines:\n  - {name: p, url: 'http://h', models: [m], role: prefill}\n"
        "  - {name: d, url: 'http://h', models: [n], role: decode}\n",
        ["2: engines[0].role: warning: no engine decodes what it prefills: it is used as one of role both"],
    ),
    "a recording of nothing": (
        "engines: [{name: a, url: 'http://h'}]\nadmission:\n  record: run.jsonl\n",
        ["3: admission.record: warning: nothing is recorded: admission.enabled is false"],
    ),
    "admission that nobody switched on": (
        "engines: [{name: a, url: 'http://h', concurrency: 5}]\nadmission:\n  ttft: {vip: 3}\n  tpot: 0.05\n",
        ["1: engines[0].concurrency: warning: not used: admission.enabled is false (found 5)",
         "3: admission.ttft: warning: not used: admission.enabled is false",
         "4: admission.tpot: warning: not used: admission.enabled is false"],
    ),
    "admission switched off": (
        "engines: [{name: a, url: 'http://h'}]\nadmission:\n  enabled: false\n  ttft: {vip: 3}\n",
        [],
    ),
    "settings of admission that do nothing": (
        "engines:\n  - {name: a, url: 'http://h', kind: openai}\n"
        "  - name: b\n    url: http://h\n    max_num_batched_tokens: 128\n"
        "  - {name: c, url: 'https://h', kind: openai, api_key: '${KEY}'}\n"
        "  - {name: d, url: 'http://h', kind: openai, kv_tokens: 9000}\n"
        "admission:\n  enabled: true\n  wait:\n    vip: 2\n    normal: 1\n    low: 5\n  queue:\n    low_share: 0.1\n"
        "  scale:\n    up: 0.5\n    settle: 5\n  record: gone/run.jsonl\n",
        ["2: engines[0].kind: warning: has no metrics that would tell its KV cache: without kv_tokens it is taken for "
         "endless",
         "5: engines[1].max_num_batched_tokens: warning: fewer than max_num_seqs (256): not every sequence has a token "
         "in a step (found 128)",
         "11: admission.wait.vip: warning: no use over ttft.vip (1.5 s) (found 2)",
         "14: admission.queue.low_starvation: warning: low never counts as normal: it waits for 5 s at most (wait.low, "
         "ttft.low) (found 20)",
         "17: admission.scale.up: warning: not used: no engine has a soft cap (engines[].concurrency)",
         "19: admission.record: warning: its folder is not there: nothing will be recorded"],
    ),
    "no engine": (
        "metrics: {}\nengines: []\n",
        ["2: engines: warning: there are none: `forebay serve` needs one here, or its --engine"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_legal_and_probably_not_meant(case: str, tmp_path: Path) -> None:
    text, expected = CASES[case]
    file = tmp_path / "forebay.yaml"
    file.write_text(text)
    source = read(file, {"KEY": KEY})
    warnings = advise(source.config, source)
    assert [str(w) for w in warnings] == [f"{file}:{w}" for w in expected]
    assert KEY not in "".join(map(str, warnings))


def test_an_empty_file_can_be_used_with_an_engine_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("")
    source = read(file, {})
    expected = f"{file}: engines: warning: there are none: `forebay serve` needs one here, or its --engine"
    assert list(map(str, advise(source.config, source))) == [expected]


def test_without_the_text_there_are_no_lines() -> None:
    config = loads("admin: 0.0.0.0:1\nengines: [{name: a, url: 'http://h'}]\n", "x", {})
    expected = "configuration: admin: warning: the admin port is open to the network, without keys (found 0.0.0.0:1)"
    assert list(map(str, advise(config))) == [expected]
