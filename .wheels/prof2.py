import penstock, time, sys, cProfile, pstats, threading, numpy as np
from dataclasses import replace
from penstock import Workers, Shuffle
from penstock.plan import LaneShare
from penstock.engine.workers import ShareEngine
from penstock.engine._stats import StatsCollector
from penstock.engine.window import PooledBatches
from penstock.device import BufferPool
P=int(sys.argv[1])
ds=penstock.load(sys.argv[3])
l=ds.select(["x"]).numpy(batch_size=256,shuffle=Shuffle(spread=1),num_workers=Workers(2,"thread"),memory_budget=1025_000_000)
src=l._engine._source
opts=replace(src.pipeline, threads=1, builders=1, window_bytes=src.pipeline.window_bytes//P, plan=replace(src.pipeline.plan,resident=False))
src=replace(src, pipeline=opts)
print(opts)
pool=BufferPool(1<<30)
eng=ShareEngine(src, LaneShare(0,P,src.partitioner), StatsCollector(), selection=l._engine._selection)
slots=[np.empty((opts.batches_per_span*256,1024),np.uint16) for _ in range(4)]
for s in slots: s[:]=1
pr=cProfile.Profile()
def builders(gather):
    def build(span):
        out=slots[span.number%4][:span.steps.rows]
        gather(span, lambda name: lambda shape,dtype: out[span.places])
        return None
    return [build]
prof=sys.argv[2]=="1"
pipe=eng.pipeline(builders, PooledBatches(pool), inline=False, depth=20)
main=pipe._thread_main
def wrapped():
    if prof: pr.enable()
    main()
    if prof: pr.disable()
pipe._threads=[threading.Thread(target=wrapped,daemon=True)]
pipe.start(0,0)
n=0
t=time.perf_counter(); c=time.process_time()
while n<3_900_000/P:
    pipe.resume(10**6)
    span,_=pipe.next_span(); n+=len(span)
dt=time.perf_counter()-t
print("rows",n,"µs/row wall",dt/n*1e6, "cpu", (time.process_time()-c)/n*1e6)
pipe.stop(wait=True); time.sleep(.5)
if prof: pstats.Stats(pr).sort_stats("tottime").print_stats(30)
