#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a tiny Llama with random weights, a tokenizer and a chat template: no network, ~1.3 MB.

Usage: VENV/bin/python make_tiny_model.py OUT_DIR [--layers N]

It speaks gibberish, at the speed of the real engine: 2 layers step in 1.4-2 ms on one core, 24
layers in 8.5 ms. Contexts reach 4096 tokens.

The tokenizer is byte-level BPE of 2048 entries, learnt from Python's standard library, which every
machine has. Weights are seeded. So the same interpreter writes the same bytes; another patch
release of Python may merge a few tokens differently.

Rule: OUT_DIR is whole or absent. The model grows in a directory beside it and is renamed. One with
the same parameters is left as it is, one with others is replaced, and a directory that holds
anything else is refused. Exit status: 0 written or there already, 1 refused or failed,
2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARAMETERS_FILE = "ullage-tiny-model.json"
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
CORPUS_FILES = 120
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def main() -> int:
    """Make the model that the command line asks for, unless it is there."""
    parser = argparse.ArgumentParser(description="write a tiny random Llama for vLLM on a CPU")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--layers", type=int, default=2, help="decoder layers, >= 1 (default 2)")
    arguments = parser.parse_args()
    if arguments.layers < 1:
        parser.error(f"--layers {arguments.layers} must be >= 1")
    out: Path = arguments.out_dir.absolute()
    wanted = parameters(arguments.layers)
    if out.exists() and not is_ours(out):
        print(f"make_tiny_model: {out} holds something else; name another place", file=sys.stderr)
        return 1
    if found(out) != wanted:
        try:
            make(out, wanted)
        except ModuleNotFoundError as error:
            print(
                f"make_tiny_model: {error}; run it with the Python of the vLLM environment, "
                f"not {sys.executable}",
                file=sys.stderr,
            )
            return 1
        size_bytes = sum(file.stat().st_size for file in out.iterdir())
        print(f"{out}: {arguments.layers} layers, {size_bytes / 1e6:.1f} MB")
    return 0


def parameters(layers: int) -> dict[str, int]:
    """Return all that distinguishes one tiny model from another."""
    return {
        "recipe": 1,  # raise it when this file would write other bytes
        "layers": layers,
        "vocabulary": 2048,
        "hidden": 128,
        "intermediate": 256,
        "heads": 4,
        "context_tokens": 4096,
        "seed": 0,
    }


def found(out: Path) -> dict[str, int] | None:
    """Return the parameters of the model in `out`, or None where there is none."""
    try:
        loaded: dict[str, int] = json.loads((out / PARAMETERS_FILE).read_text())
    except FileNotFoundError:
        return None
    return loaded


def is_ours(out: Path) -> bool:
    """Tell whether replacing `out` would lose nothing but a tiny model."""
    return out.is_dir() and (not any(out.iterdir()) or (out / PARAMETERS_FILE).is_file())


def make(out: Path, wanted: Mapping[str, int]) -> None:
    """Write the model beside `out`, then put it in place with a rename."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        fresh, old = Path(scratch, "new"), Path(scratch, "old")
        fresh.mkdir()
        write_model(fresh, write_tokenizer(fresh, wanted), wanted)
        (fresh / PARAMETERS_FILE).write_text(json.dumps(wanted, indent=1) + "\n")
        if out.exists():
            out.rename(old)
        try:
            fresh.rename(out)
        except OSError:
            if found(out) != wanted:  # else another run was quicker, and its model will do
                raise


def write_tokenizer(where: Path, wanted: Mapping[str, int]) -> Any:
    """Train and save the tokenizer; return it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=wanted["vocabulary"],
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:CORPUS_FILES]
    bpe.train([str(file) for file in corpus], trainer)
    pad, bos, eos, *_ = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        model_max_length=wanted["context_tokens"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(where)
    return tokenizer


def write_model(where: Path, tokenizer: Any, wanted: Mapping[str, int]) -> None:
    """Save seeded random weights in bfloat16, and the configuration that goes with `tokenizer`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(wanted["seed"])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=wanted["hidden"],
        intermediate_size=wanted["intermediate"],
        num_hidden_layers=wanted["layers"],
        num_attention_heads=wanted["heads"],
        num_key_value_heads=wanted["heads"],
        head_dim=wanted["hidden"] // wanted["heads"],
        max_position_embeddings=wanted["context_tokens"],
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(where)


if __name__ == "__main__":
    sys.exit(main())
