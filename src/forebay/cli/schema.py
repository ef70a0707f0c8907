"""`forebay schema`: the JSON Schema that editors complete and check `forebay.yaml` with."""

from __future__ import annotations

import json

from forebay.config.schema import editor_schema


def command() -> None:
    """Print the JSON Schema of the configuration, for editors.

    Save it beside forebay.yaml as forebay.schema.json and write as that file's first line:
    # yaml-language-server: $schema=forebay.schema.json
    """
    print(json.dumps(editor_schema(), ensure_ascii=False, indent=2))
