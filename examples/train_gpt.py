"""Train a small GPT on a mixture of two corpora, packed into sequences of one length.

It makes a small table for each corpus if there is none. To run it:

    python examples/train_gpt.py /tmp/corpora --checkpoint /tmp/gpt.pt
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import penstock

LENGTH, WIDTH, HEADS, LAYERS = 128, 64, 4, 2
VOCABULARY, END = 256, 0  # tokens are bytes, and a zero ends a document
WEIGHTS = {"web": 0.7, "code": 0.3}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on a packed mixture of corpora.")
    parser.add_argument("tables", help="where the tables `web` and `code` are: a folder, s3://bucket/prefix, …")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_gpt.pt"))
    parser.add_argument("--documents", type=int, default=300, help="of each table, if it has to be made")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = torch.load(args.checkpoint, map_location=device) if args.checkpoint.exists() else None

    # A run stays with the versions it began with, whatever others commit meanwhile.
    corpora = {name: open_corpus(args, name, saved["versions"][name] if saved else None) for name in WEIGHTS}
    packed = {name: ds.pack("tokens", LENGTH, eos=END) for name, ds in corpora.items()}
    # The number of documents in a sequence, and so the shape of cu_seqlens, differs between the corpora.
    columns = ["tokens", "segment_ids", "position_ids"]
    mixture = penstock.mix({name: view.select(columns) for name, view in packed.items()}, weights=WEIGHTS, stop="all")
    loader = mixture.pytorch(batch_size=args.batch_size, shuffle=True, device=device)

    torch.manual_seed(0)
    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        print(f"going on after step {step}")

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        versions = {name: ds.version for name, ds in corpora.items()}
        unfinished = args.checkpoint.with_suffix(".unfinished")
        torch.save({**state, "versions": versions, "step": step}, unfinished)
        unfinished.replace(args.checkpoint)  # a run that is killed here leaves the old checkpoint whole

    stop = None if args.max_steps is None else step + args.max_steps
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.print_every == 0:
                of_code = (batch["_source"] == mixture.sources.index("code")).float().mean().item()
                print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}, {of_code:.0%} code")
            if step % args.save_every == 0:
                save()
            if step == stop:
                break
        if step == stop:
            break
    save()
    print(f"stopped after step {step}, with {loader.stats().rows:,} sequences read in this run")
    print(loader.stats().bottleneck)


class Gpt(nn.Module):
    """A decoder whose tokens attend to the earlier ones of their own document."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        same_document = segments[:, :, None] == segments[:, None, :]  # block-diagonal
        allowed = same_document.tril()[:, None]
        # positions count within a document, which may be longer than a sequence
        found = self.tokens(tokens) + self.positions(positions % LENGTH)
        for block in self.blocks:
            found = block(found, allowed)
        return self.out(found)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.join = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, found: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        heads = self.heads(self.norm(found)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads, attn_mask=allowed)
        found = found + self.join(attended.transpose(1, 2).flatten(2))
        return found + self.mlp(found)


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of the next token, where there is one in the same document; free places have segment 0."""
    tokens, segments = batch["tokens"].long(), batch["segment_ids"]
    scores = model(tokens, segments, batch["position_ids"])
    follows = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    targets = tokens[:, 1:].masked_fill(~follows, -100)  # which cross_entropy leaves out
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), targets.flatten())


def open_corpus(args: argparse.Namespace, name: str, version: str | None) -> penstock.Dataset:
    table = f"{args.tables.rstrip('/')}/{name}"
    if not penstock.exists(table):
        ds = penstock.create(table, {"tokens": penstock.Tensor("uint8", (None,))})
        random = np.random.default_rng(0)
        ds.append({"tokens": document(random, name)} for _ in range(args.documents))
        ds.commit(f"{args.documents} documents")
    return penstock.load(table, version=version)


def document(random: np.random.Generator, name: str) -> np.ndarray:
    """Sentences, or assignments: of many lengths, as in any corpus."""
    words = random.choice(["pump", "valve", "water", "river", "gate"], int(random.lognormal(2, 1)) + 2)
    text = " ".join(words) + "." if name == "web" else "\n".join(f"{word} = {len(word)}" for word in words)
    return np.frombuffer(text.encode(), np.uint8)


if __name__ == "__main__":
    main()
