"""A small model for train_ddp.py and train_fsdp.py: a transformer that learns an artificial language."""

import torch
from torch import nn

SYMBOLS, SENTENCE, BATCH = 32, 33, 64  # BATCH: sentences in a step, over all ranks
LIKELY = torch.tensor([0.7, 0.2, 0.1])  # a symbol has three possible successors
LOSS_MIN = -(LIKELY * LIKELY.log()).sum().item()  # the entropy of the language: no model can have a smaller loss


def sentences(step):
    """Return the batch of a step, which is always the same. The first symbol of a sentence decides which successors
    each symbol has."""
    language = torch.Generator().manual_seed(1)
    successors = torch.rand(2, SYMBOLS, SYMBOLS, generator=language).argsort(dim=-1)[..., : len(LIKELY)]
    chance = torch.Generator().manual_seed(2 + step)
    batch = torch.randint(SYMBOLS, (BATCH, 1), generator=chance)
    while batch.shape[1] < SENTENCE:
        choice = torch.multinomial(LIKELY, BATCH, replacement=True, generator=chance)
        batch = torch.hstack([batch, successors[batch[:, 0] % 2, batch[:, -1], choice].unsqueeze(1)])
    return batch


class Transformer(nn.Module):
    """Predicts every symbol of a sentence from those before it."""

    def __init__(self, width=64, depth=2):
        super().__init__()
        self.symbols, self.positions = nn.Embedding(SYMBOLS, width), nn.Embedding(SENTENCE - 1, width)
        block = {"dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, **block) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, SYMBOLS))

    def forward(self, batch):
        """The mean loss over a batch of sentences."""
        known, wanted = batch[:, :-1], batch[:, 1:]
        hidden = self.symbols(known) + self.positions(torch.arange(known.shape[1], device=batch.device))
        mask = nn.Transformer.generate_square_subsequent_mask(known.shape[1], device=batch.device)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), wanted.flatten())
