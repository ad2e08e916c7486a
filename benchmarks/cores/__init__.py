"""How the loader scales with cores, beside torch's DataLoader and what the machine can do at most."""
