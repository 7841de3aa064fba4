typedef int bench_reduce_nothing;
