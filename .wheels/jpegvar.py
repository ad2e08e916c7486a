import sys, time, json
from pathlib import Path
sys.path.insert(0,'.')
import penstock, torch
import penstock.engine._sizing as sizing
from penstock.engine.workers import WorkerCounts
from benchmarks.cores import tables
from benchmarks.cores.rate import measure
from benchmarks.cores.data import Data
from benchmarks.cores import limits
def rate(data, P, owners, threads, secs=2.0, frac=None):
    sizing.choose_workers = lambda *a, **k: WorkerCounts(P, owners, threads)
    ds=penstock.load(data.table)
    with ds.pytorch(batch_size=256, shuffle=penstock.Shuffle(spread=1), num_workers=16, memory_budget=data.budget_bytes*(frac or 1)) as l:
        r=measure(l, data.workload, seconds=secs, warmup_s=1.0, burst=1, values=lambda b: b.get("image", b.get("tokens")))
        st=l.stats()
        return round(r.rows_per_s), round(r.first_batch_s,2), {k:(round(v.busy_s,1),round(v.starved_s,1),round(v.blocked_s,1)) for k,v in st.stages.items() if k in("worker","fetch")}
which=sys.argv[1]
data=tables.build(Path('/dev/shm/bench'), which, scale=1, copies=6)
print(data.budget_bytes)
variants=[(8,8,2),(8,8,3),(12,12,1),(12,12,2)]
for v in variants:
    print(which, v, rate(data,*v), flush=True)
