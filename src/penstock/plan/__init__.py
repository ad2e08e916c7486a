"""Pure arithmetic of an epoch: which row comes when, on which rank; integers in, integers out."""

from penstock.plan._blocks import cut_blocks
from penstock.plan._epoch import Epoch
from penstock.plan._mix import derive, mix
from penstock.plan._options import IN_ORDER, Shuffle, choose_shuffle
from penstock.plan._quality import Quality, perfect_blocks
from penstock.plan._ranks import Dealer
from penstock.plan._spread import Spread
from penstock.plan._state import Order, State

__all__ = [
    "IN_ORDER", "Dealer", "Epoch", "Order", "Quality", "Shuffle", "Spread", "State", "choose_shuffle", "cut_blocks",
    "derive", "mix", "perfect_blocks",
]  # fmt: skip
