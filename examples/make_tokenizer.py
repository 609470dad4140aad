"""Train a byte-level BPE tokenizer on text files, with the token <|endoftext|>.

python examples/make_tokenizer.py /usr/share/common-licenses/* --vocabulary 1000 --output tokenizer.json
"""

import argparse
from pathlib import Path

import tokenizers


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocabulary", type=int, default=1000, help="tokens, with the 256 bytes")
    parser.add_argument("--output", type=Path, default=Path("tokenizer.json"))
    args = parser.parse_args()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=args.vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(args.files, trainer)
    tokenizer.save(str(args.output))
    print(f"{args.output}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
