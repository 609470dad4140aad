"""Train a small language model on rows that are cut from all documents, on any number of ranks, and go on from there.

python examples/make_tokenizer.py book.txt
shardio convert text book.txt data/book --paragraphs --tokenizer tokenizer.json --eod "<|endoftext|>"
torchrun --standalone --nproc-per-node 2 examples/language_model.py data/book --stop-after 100
python examples/language_model.py data/book

The last command goes on in the middle of the epoch, on one rank: it sees the tokens that the other two have not seen,
in batches of the same size, so the loss goes on, too.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from torch import Tensor, nn

import shardio

CONTEXT = 64


class LanguageModel(nn.Module):
    """A transformer that predicts the next token."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, CONTEXT, vocabulary] for tokens [B, CONTEXT]."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens) + self.positions, mask=mask, is_causal=True))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="rows of all ranks together")
    parser.add_argument("--stop-after", type=int, help="steps, after which the checkpoint is left")
    parser.add_argument("--checkpoint", type=Path, default=Path("language_model.pt"))
    args = parser.parse_args()
    if "RANK" not in os.environ:
        train(args)
        return
    dist.init_process_group("gloo")
    train(args)  # everything that holds the process group ends in `train`
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    """Train until `args.epochs` are done, from the checkpoint if there is one."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    documents = shardio.open(args.dataset)
    rows = documents.cut("tokens", CONTEXT + 1)  # the tokens, and those that follow them
    loader = shardio.Loader(rows, args.batch_size // world, seed=0)
    torch.manual_seed(0)
    model = LanguageModel(documents.fields["tokens"].attributes["vocabulary"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts, step = {"model": model, "optimizer": optimizer, "loader": loader}, 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        step = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    replica = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    while loader.epoch < args.epochs and step != args.stop_after:
        for batch in loader:
            tokens = batch["tokens"]  # int64 [B, CONTEXT + 1]
            loss = nn.functional.cross_entropy(replica(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            loss = loss.detach()
            if world > 1:
                dist.all_reduce(loss)
            if loader.world.rank == 0:
                print(f"step {step}: loss {loss.item() / world:.3f}", flush=True)
            if step == args.stop_after:
                break
    if loader.world.rank == 0:  # all ranks have the same state
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, args.checkpoint)


if __name__ == "__main__":
    main()
