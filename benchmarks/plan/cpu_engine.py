"""`python cpu_engine.py FOLDER`: what real vLLM makes of each FOLDER/*.json, one JSON line each.

Run with the interpreter of a vLLM environment. A file holds `config`, a model's config.json, and `engine`, arguments of
the engine. Weights are random; the engine is made in this process up to where it would take requests, and asked how
large its KV cache became.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path

from vllm import LLM


def blocks(file: Path, scratch: Path) -> dict[str, object]:
    spec = json.loads(file.read_text())
    folder = scratch / file.stem
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(spec["config"]))
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        disable_log_stats=True,
        **spec["engine"],
    )
    config = llm.llm_engine.vllm_config
    cache = config.cache_config
    found = {
        "name": file.stem,
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "kv_tokens": cache.kv_cache_size_tokens,
        "concurrency": cache.kv_cache_max_concurrency,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_model_len": config.model_config.max_model_len,
        "async": config.scheduler_config.async_scheduling,
    }
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return found


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for file in sorted(folder.glob("*.json")):
            try:
                found = blocks(file, Path(scratch))
            except Exception as e:  # whatever vLLM raises is the answer for this one
                found = {"name": file.stem, "error": f"{type(e).__name__}: {e}"[:500]}
            sys.stdout.write("\nFOUND " + json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
