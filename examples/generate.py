"""Use the engine without HTTP: `python examples/generate.py "def main():"`."""

import asyncio
import sys

import numpy as np
from tokenizers import Tokenizer

from demo import MODEL_FOLDER
from engine.client import EngineClient
from engine.config import EngineConfig, ModelConfig
from engine.messages.request import Request
from sampling.params import SamplingParams


async def main(prompt: str) -> None:
    """Complete a prompt with the demo model and print it as it comes."""
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    engine = await EngineClient.start(EngineConfig(model=ModelConfig(model=str(MODEL_FOLDER))))
    request = Request(
        handle=engine.new_handle(),
        prompt_token_ids=np.array(tokenizer.encode(prompt).ids, dtype=np.int32),
        params=SamplingParams(temperature=0.7, top_p=0.95, seed=1),
        max_tokens=100,
    )
    token_ids: list[int] = []
    async for entries in engine.submit(request):
        for entry in entries:
            token_ids += entry.token_ids.tolist()
    print(prompt + tokenizer.decode(token_ids))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "import os\n\n\ndef walk("))
