"""vLLM's own `vllm bench serve`, run by the interpreter that has vLLM: python vllm_driver.py PROMPTS.jsonl OPTIONS…

Only where the prompts come from is replaced: its readers of files want pandas, which the CPU build does not bring.
Arrivals, client, clock and figures are vLLM's.
"""

import json
import sys

from vllm.benchmarks import serve
from vllm.benchmarks.datasets import SampleRequest
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    with open(sys.argv.pop(1)) as file:  # noqa: PTH123 - without the project's own dependencies
        rows = [json.loads(line) for line in file]

    def samples(args, tokenizer):
        return [
            SampleRequest(
                prompt=row["prompt"],
                prompt_len=len(tokenizer(row["prompt"]).input_ids),
                expected_output_len=row["output_tokens"],
                multi_modal_data=None,
                request_id=f"{args.request_id_prefix}{n}",
            )
            for n, row in enumerate(rows)
        ]

    serve.get_samples = samples
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    main()
